"""The overview: is everything fine, and if not, where to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from fileq.commands.admin.stats import Stats, gather
from fileq.server.api.dead_endpoints import DeadGroupsQuery, show_dead_groups
from fileq.server.api.job_lists import JobListQuery
from fileq.server.api.list_endpoints import list_jobs
from fileq.server.api.state_endpoints import HoursQuery, HourStats, show_hourly_stats
from fileq.server.console.charts import bar, line_chart
from fileq.server.console.page import PageRequest
from fileq.server.live_samples import LiveSample

_RANGES = {"24h": 24, "7d": 168, "30d": 720}
_GROUPS, _JOBS = 5, 10


class OverviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    hours: Literal["24h", "7d", "30d"] = "24h"


class Banner(Struct, frozen=True):
    """Something that stops work, and the page where an operator does something about it."""

    text: str
    is_bad: bool = False
    link: str = ""
    link_text: str = ""


def overview(request: PageRequest) -> Mapping[str, Any]:
    services = request.services
    stats = request.shown(gather(services.broker))
    hours = request.ask(show_hourly_stats, HoursQuery(_RANGES[request.query.hours])).hours
    day = hours[-24:]
    completed, failed = sum(one.completed for one in day), sum(one.failed for one in day)
    groups = request.ask(show_dead_groups, DeadGroupsQuery(limit=_GROUPS)) if stats.dead else None
    living = [process for process in stats.workers if process.is_alive]
    ages = [queue.oldest_age_s for queue in stats.queues if queue.oldest_age_s is not None]
    most = max((queue.length for queue in stats.queues), default=0)
    return {
        "stats": stats,
        "completed": completed,
        "failed": failed,
        "rate": completed / (completed + failed) * 100 if completed + failed else None,
        "slots": sum(process.slots for process in living),
        "processes": len(living),
        "oldest_age_s": max(ages, default=None),
        "chart": _chart(hours, request.query.hours),
        "ranges": list(_RANGES),
        "chosen": request.query.hours,
        "queues": [(queue, bar(queue.length, most, title=f"{queue.length} waiting")) for queue in stats.queues],
        "live_chart": _live_chart(services.samples.read()),
        "groups": groups,
        "jobs": request.ask(list_jobs, JobListQuery(limit=_JOBS)).jobs,
        "banners": _banners(stats),
    }


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
    return line_chart(series, [one.at[11:16] for one in kept], title="Jobs per second, last hour", height=150)


def breaker_banners(routes: Sequence[str]) -> list[Banner]:
    """One for each route, however many processes have opened its breaker."""
    found = []
    for route, count in Counter(routes).items():
        where = "1 worker process" if count == 1 else f"{count} worker processes"
        text = f"The breaker of {route} is open in {where}: too many of its jobs fail, so the others wait."
        found.append(Banner(text, link="/dashboard/workers", link_text="Workers"))
    return found


def _banners(stats: Stats) -> list[Banner]:
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
