"""The overview: is everything fine, and if not, where to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.types import Overview
from fileq.client.job_filter import Conditions, JobFilter
from fileq.client.job_selection import complete_records, outlined
from fileq.commands.admin.stats import QueueStats, WorkerProcess, eta_of, processes, queues_of
from fileq.server.api.dead_endpoints import DeadGroupsQuery, dead_groups
from fileq.server.api.job_document import JobDocument
from fileq.server.api.job_lists import document_of
from fileq.server.api.state_endpoints import MINUTE_SAMPLES, HourStats, hours_of
from fileq.server.console.charts import bar, line_chart
from fileq.server.console.page import PageRequest
from fileq.server.live_samples import KEPT, LiveSample, per_second

_RANGES = {"24h": 24, "7d": 168, "30d": 720}
_GROUPS, _JOBS = 5, 10
_GROUPED = 2_500  # dead jobs that are looked at for the groups: this page is refreshed most often


class OverviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    hours: Literal["24h", "7d", "30d"] = "24h"


class Banner(Struct, frozen=True):
    """Something that stops work, and the page where an operator does something about it."""

    text: str
    is_bad: bool = False
    link: str = ""
    link_text: str = ""


class BrokerState(Struct, frozen=True):
    """`eta_s` is how long the backlog takes; None if that is unknown."""

    broker: str
    where: str
    queues: tuple[QueueStats, ...]
    workers: tuple[WorkerProcess, ...]
    waiting: int
    dead: int
    eta_s: float | None


def overview(request: PageRequest) -> Mapping[str, Any]:
    """Two round trips, the overview and the records of the latest jobs, and the scan of the dead jobs."""
    services, count = request.services, _RANGES[request.query.hours]
    found = services.broker.overview(count, jobs=_JOBS)
    samples = services.samples.read()
    state = request.shown(_state(found, samples, services.broker.kind, services.broker.where))
    hours = hours_of(found.hours, count, services.now_ms())
    day = hours[-24:]
    completed, failed = sum(one.completed for one in day), sum(one.failed for one in day)
    living = [process for process in state.workers if process.is_alive]
    ages = [queue.oldest_age_s for queue in state.queues if queue.oldest_age_s is not None]
    most = max((queue.length for queue in state.queues), default=0)
    return {
        "stats": state,
        "completed": completed,
        "failed": failed,
        "rate": completed / (completed + failed) * 100 if completed + failed else None,
        "slots": sum(process.slots for process in living),
        "processes": len(living),
        "oldest_age_s": max(ages, default=None),
        "chart": _chart(hours, request.query.hours),
        "ranges": list(_RANGES),
        "chosen": request.query.hours,
        "queues": [(queue, bar(queue.length, most, title=f"{queue.length} waiting")) for queue in state.queues],
        "live_chart": _live_chart(samples),
        "groups": request.shown(dead_groups(services, DeadGroupsQuery(limit=_GROUPS), _GROUPED))
        if state.dead
        else None,
        "jobs": _latest(request, found),
        "banners": _banners(state),
    }


def _state(found: Overview, samples: Sequence[LiveSample], kind: str, where: str) -> BrokerState:
    """The rate of the ETA is that of the samples of the last minute, which cost the broker nothing more."""
    last = samples[-MINUTE_SAMPLES:]
    eta = eta_of(found, lambda: per_second(last, "completed") + per_second(last, "dead"))
    queues, workers = queues_of(found), processes(found.workers, found.census.now_ms)
    return BrokerState(kind, where, queues, workers, sum(one.length for one in queues), found.census.dead, eta.eta_s)


def _latest(request: PageRequest, found: Overview) -> list[JobDocument]:
    """In the order of a list of jobs: running, waiting, delayed, then ended ones. One round trip."""
    running = tuple(view.raw for view in found.workers if view.raw)
    places = {PROCESSING: running, **found.first}
    every = Conditions(JobFilter())
    broker = request.services.broker
    jobs = [job for place, raws in places.items() for job in outlined(broker, raws[:_JOBS], place, every).jobs]
    return [request.shown(document_of(stored)) for stored in complete_records(broker, jobs[:_JOBS])]


def _chart(hours: Sequence[HourStats], chosen: str) -> Any:
    per_label = 1 if chosen == "24h" else 24
    labels = [one.hour[11:16] if per_label == 1 else one.hour[5:10] for one in hours]
    series = [("a", [one.completed for one in hours]), ("b", [one.failed for one in hours])]
    return line_chart(series, labels, title=f"Jobs per hour, last {chosen}")


def _live_chart(samples: Sequence[LiveSample]) -> Any:
    if len(samples) < 2:
        return None
    every = max(1, len(samples) // 180)
    kept = samples[::every]
    series = [("a", [one.completed_per_second for one in kept]), ("b", [one.failed_per_second for one in kept])]
    labels, places = [one.at[11:16] for one in kept], KEPT // every
    return line_chart(series, labels, title="Jobs per second, last hour", height=150, places=places)


def breaker_banners(routes: Sequence[str]) -> list[Banner]:
    """One for each route, however many processes have opened its breaker."""
    found = []
    for route, count in Counter(routes).items():
        where = "1 worker process" if count == 1 else f"{count} worker processes"
        text = f"The breaker of {route} is open in {where}: too many of its jobs fail, so the others wait."
        found.append(Banner(text, link="/dashboard/workers", link_text="Workers"))
    return found


def _banners(stats: BrokerState) -> list[Banner]:
    found = []
    living = [process for process in stats.workers if process.is_alive]
    if stats.waiting and not living:
        text = f"{stats.waiting} jobs wait and no worker is running. Start one: fileq worker"
        found.append(Banner(text, is_bad=True, link="/dashboard/workers", link_text="Workers"))
    found += breaker_banners([one.route for process in living for one in process.breakers])
    for process in stats.workers:
        if process.lost_roots:
            text = f"{process.host} ({process.pid}) does not find {', '.join(process.lost_roots)}, so its files wait."
            found.append(Banner(text, is_bad=True, link="/dashboard/workers", link_text="Workers"))
    paused = [queue.name for queue in stats.queues if queue.is_paused]
    if paused:
        found.append(Banner(f"Paused: {', '.join(paused)}.", link="/dashboard/queues", link_text="Queues"))
    return found
