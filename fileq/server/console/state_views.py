"""Queues with their rates, worker processes with the jobs that they run, and the overview. Only reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from fileq.actions.bulk import JobAction
from fileq.brokers.lost_workers import LOST_WORKERS
from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview, Record
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS
from fileq.commands.action_log import ACTIONS, LoggedAction
from fileq.commands.admin.pauses import NOTES, PauseNote
from fileq.commands.admin.running_workers import workers_in
from fileq.commands.admin.stats import QueueStats, eta_of, queues_of
from fileq.core.job import State, decode_or_none, parse_time
from fileq.core.webhook import DELIVERY_TYPE
from fileq.queries.documents import BreakerDocument, JobDocument, WorkerDocument
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob
from fileq.queries.job_ids import id_in
from fileq.queries.job_selection import outlined, with_outlines
from fileq.server.api.action_endpoints import DeadGroupsQuery, dead_groups
from fileq.server.api.queue_endpoints import (
    MINUTE_SAMPLES,
    HourStats,
    QueueDocument,
    hours_of,
    queue_list,
)
from fileq.server.console.charts import bar, line_chart, sample_chart
from fileq.server.console.job_views import headline
from fileq.server.console.view import ViewList, ViewRequest, mark_of, number, pause_words, read_notes
from fileq.server.route import NoQuery
from fileq.server.services import per_second
from fileq.worker.breakers import reason_of

VIEWS = ViewList()

ENDED = 100  # of the newest completed and of the newest dead jobs, for the rates of queues and of processes
MINUTE_MS = 60_000
PROCESSES, JOBS = 100, 20  # that the view of workers shows, of each process so many jobs


class QueueRow(Struct, frozen=True):
    """`came` and `left` are jobs of the last minute; `came` is None before the server has two samples."""

    queue: QueueDocument
    came: int | None
    left: int
    chart: Any


@VIEWS.add("/queues", "Queues", "queues.html", letter="q")
def queues(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Two round trips: the overview with the newest ended jobs, and the outlines of these; a third one if a queue is
    paused. What has changed within a minute is from samples that the server has taken before."""
    broker = request.broker
    overview = broker.overview(1, jobs=ENDED)
    found = queue_list(broker, overview)
    out, _ = out_a_minute(broker, overview, lambda record: record.queue)
    change, last_hour = request.services.samples.waiting_change(MINUTE_SAMPLES), request.services.samples.read()
    most = max((queue.waiting for queue in found.queues), default=0)
    rows = []
    for queue in found.queues:
        left = out.get(queue.name, 0.0)
        came = max(0, round(change[queue.name] + left)) if queue.name in change else None
        chart = bar(queue.waiting, most, title=f"{queue.waiting} pending")
        rows.append(QueueRow(queue, came, round(left), chart))
    return {
        "found": found,
        "rows": rows,
        "came": sum(row.came or 0 for row in rows) if change else None,  # as the rows say, so that they add up
        "left": sum(row.left for row in rows),
        "waiting_chart": sample_chart(last_hour, "Pending jobs, last hour", a=lambda one: one.waiting),
        "flow_chart": sample_chart(
            last_hour,
            "Jobs per second, last hour",
            a=lambda one: one.produced_per_second,
            c=lambda one: one.completed_per_second + one.dead_per_second,
        ),
    }


def out_a_minute(
    broker: FullBroker, overview: Overview, name: Callable[[Record], str], others: Sequence[str] = ()
) -> tuple[dict[str, float], list[Record | None]]:
    """How many jobs of each queue, or other name, were completed or died within the last minute; and the outlines of
    other jobs, in the same round trip. A counter for each queue would cost the hot path something, so the newest ended
    jobs tell it."""
    ids = {place: [id_in(raw) for raw in overview.first.get(place, ())] for place in ("completed", "dead_letter")}
    wanted = [*(id for some in ids.values() for id in some), *others]
    found = iter(broker.outlines(wanted) if wanted else ())
    rates: dict[str, float] = {}
    for some in ids.values():
        records = list(islice(found, len(some)))
        ended = ended_a_minute(records, overview.census.now_ms, ENDED, name)
        rates = {key: rates.get(key, 0.0) + ended.get(key, 0.0) for key in rates.keys() | ended.keys()}
    return rates, list(found)


@VIEWS.add("/workers", "Workers", "workers.html", letter="w")
def workers(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Three round trips: the processes with the newest ended jobs, then those that died and the log of what people did,
    then the outlines of the jobs. `cancelling` are the ids of jobs that still run although they are to be cancelled."""
    services, broker = request.services, request.broker
    overview = broker.overview(1, jobs=ENDED)
    lost, actions = broker.documents_of([LOST_WORKERS.kind, ACTIONS.kind])
    found = request.shown(workers_in(overview, lost))
    cancelled = cancelled_ids(ACTIONS.newest(actions), services.now_ms())
    shown = sorted(found.workers, key=needs_attention)[:PROCESSES]
    running = [job.id for process in shown for job in process.jobs[:JOBS] if job.id]
    others = [*running, *islice(cancelled, ENDED)]
    rates, records = out_a_minute(broker, overview, lambda record: process_of(record.slot), others)
    living = [process for process in found.workers if process.is_alive]
    return {
        "found": found,
        "rows": [(process, rates.get(f"{process.host}-{process.pid}", 0.0)) for process in shown],
        "unshown": len(found.workers) - len(shown),
        "jobs_shown": JOBS,
        "cancelling": {record.id for record in records if record is not None and record.is_cancel_requested},
        "cancelled": cancelled_jobs(cancelled, records[len(running) :], overview, hides_paths=services.hides_paths),
        "processes": len(living),
        "silent": sum(process.is_silent for process in found.workers) + len(found.lost),
    }


def needs_attention(process: WorkerDocument) -> tuple[bool, str, int]:
    """Sorts processes: those with something wrong first."""
    is_wrong = process.is_silent or bool(process.lost_roots or process.breakers)
    return not is_wrong, process.host, process.pid


def ended_a_minute(
    records: Iterable[Record | None], now_ms: int, limit: int, name: Callable[[Record], str]
) -> dict[str, float]:
    """How many of these jobs ended within the last minute, by a name that follows from the record.

    If they are as many as were looked at, and all of this minute, there may have been more: then it is the rate over
    their own time."""
    known = [record for record in records if record is not None and record.ended_ms]
    recent = [record for record in known if record.ended_ms > now_ms - MINUTE_MS]
    if not recent:
        return {}
    minutes = 1.0
    if len(recent) == len(known) >= limit:
        minutes = max(1, now_ms - min(record.ended_ms for record in recent)) / MINUTE_MS
    counts = Counter(map(name, recent))
    return {name: count / minutes for name, count in counts.items()}


def process_of(slot: str) -> str:
    """`host-pid` of a slot's name, which is `host-pid-number-random`."""
    return slot.rsplit("-", 2)[0]


# Jobs that people cancelled a moment ago, with what became of them: their rows leave the view of workers. Does no
# I/O.

RECENT_S = 900.0
SHOWN = 10


class CancelledJob(Struct, frozen=True):
    """`status` is what the job is now. It may be completed: then it was faster than its cancellation. `name` is its
    file or type, or its id if these are not known."""

    id: str
    name: str
    status: str
    by: str
    at: str


def cancelled_ids(log: Sequence[LoggedAction], now_ms: int) -> dict[str, LoggedAction]:
    """The jobs that were to be cancelled within the last minutes, the newest first, each with its last cancellation."""
    found: dict[str, LoggedAction] = {}
    for one in log:
        at = parse_time(one.at)
        if one.action is JobAction.CANCEL and at is not None and now_ms / 1000 - at.timestamp() <= RECENT_S:
            found |= {id: one for id in one.ids if id not in found}
    return found


def cancelled_jobs(
    ids: Mapping[str, LoggedAction], records: Iterable[Record | None], overview: Overview, *, hides_paths: bool
) -> list[CancelledJob]:
    """Those that a worker had started and that have ended. `overview` has the newest jobs of each state: they tell the
    names."""
    known = [one for one in records if one is not None and one.id in ids]
    ended = [one for one in known if one.started_ms and not one.state.is_unfinished]
    jobs = (decode_or_none(raw) for raws in overview.first.values() for raw in raws) if ended else ()
    names = {job.id: (job.filepath if not hides_paths else "") or job.type for job in jobs if job is not None}
    found = [
        CancelledJob(one.id, names.get(one.id) or one.id, one.state.value, ids[one.id].by, ids[one.id].at)
        for one in ended
    ]
    return sorted(found, key=lambda one: one.at, reverse=True)[:SHOWN]


# The overview: is everything fine, and if not, where to look.

_RANGES = {"24h": 24, "7d": 168, "30d": 720}
_GROUPS, _JOBS = 5, 10
_LOOKED_AT = 50  # jobs of each place: those that are scheduled tell how many are deferred
_GROUPED = 2_500  # dead jobs that are looked at for the groups: this view is refreshed most often


class OverviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    hours: Literal["24h", "7d", "30d"] = "24h"


class Banner(Struct, frozen=True):
    """Something that stops work, and the views where an operator does something about it, each with its title. `until`
    is when fileq retries automatically."""

    text: str
    is_bad: bool = False
    links: tuple[tuple[str, str], ...] = ()
    until: str | None = None


class Recent(NamedTuple):
    """`deferred` counts the deferred jobs by reason, `deferred_in` by queue. `is_more`: there may be more of them."""

    jobs: list[JobDocument]
    deferred: Counter[str]
    deferred_in: Counter[str]
    is_more: bool


@VIEWS.add("", "Overview", "overview.html", is_scan=True, letter="o", changes_with="*")
def overview(request: ViewRequest[OverviewQuery]) -> Mapping[str, Any]:
    """Three round trips, the overview, the outlines of the latest jobs and the notes of people, and the scan of the
    dead jobs."""
    services, count = request.services, _RANGES[request.query.hours]
    found = services.broker.overview(count, jobs=_LOOKED_AT)
    samples = services.samples.read()
    census, queues, workers = found.census, queues_of(found), request.shown(workers_in(found, {})).workers
    hours = hours_of(found.hours, count, services.now_ms())
    day = hours[-24:]
    completed, failed = sum(one.completed for one in day), sum(one.failed for one in day)
    living = [process for process in workers if process.is_alive]
    ages = [queue.oldest_age_s for queue in queues if queue.oldest_age_s is not None]
    most = max((queue.length for queue in queues), default=0)
    # The rate of the ETA is that of the samples of the last minute, which cost the broker nothing more.
    minute = samples[-MINUTE_SAMPLES:]
    eta = eta_of(found, lambda: per_second(minute, "completed") + per_second(minute, "dead"))
    recent = _recent(request, found)
    groups = None
    if census.dead:
        groups = request.shown(dead_groups(request, DeadGroupsQuery(limit=_GROUPS), _GROUPED))
    seen = groups.groups if groups is not None else ()
    kinds = ((ACKNOWLEDGEMENTS, seen), (NOTES, census.paused))
    notes = read_notes(request, [kind for kind, is_needed in kinds if is_needed])
    marks = {group.key: mark_of(group, notes.acknowledgements) for group in seen}
    known = [group for group in seen if marks[group.key].state == "acknowledged"]
    has_seen_all = groups is not None and not groups.is_partial and groups.group_count <= len(seen)
    return {
        "waiting": sum(queue.length for queue in queues),
        "delayed": census.scheduled,
        "dead": census.dead,
        "eta_s": eta.eta_s,
        "completed": completed,
        "failed": failed,
        "rate": completed / (completed + failed) * 100 if completed + failed else None,
        "slots": sum(process.slots for process in living),
        "busy": sum(process.busy for process in living),
        "processes": len(living),
        "oldest_age_s": max(ages, default=None),
        "chart": _chart(hours, request.query.hours),
        "ranges": list(_RANGES),
        "queues": [(queue, bar(queue.length, most, title=f"{queue.length} pending")) for queue in queues],
        "live_chart": sample_chart(
            samples,
            "Jobs per second, last hour",
            a=lambda one: one.completed_per_second,
            b=lambda one: one.failed_per_second,
        ),
        "groups": groups,
        "headlines": {group.key: headline(group) for group in seen},
        "marks": marks,
        "all_known": has_seen_all and len(known) == len(seen),
        "known_count": sum(group.count for group in known),
        "jobs": recent.jobs,
        "deferred": recent.deferred.total(),
        "deferred_in": recent.deferred_in,
        "is_deferred_more": recent.is_more,
        "banners": _banners(queues, workers, recent, notes.pauses),
    }


def _recent(request: ViewRequest[Any], found: Overview) -> Recent:
    """The jobs that changed last, the newest change first, and what is deferred. One round trip."""
    broker = request.broker
    jobs = with_outlines(broker, [*_candidates(request, found)])
    deferred = [(one, one.record) for one in jobs if one.state is State.DEFERRED and one.record is not None]
    latest = sorted(jobs, key=changed_ms, reverse=True)[:_JOBS]
    return Recent(
        [request.shown(stored.document()) for stored in latest],
        Counter(record.deferred for _, record in deferred),
        Counter(one.home for one, _ in deferred),
        is_more=bool(deferred) and found.census.scheduled > len(found.first.get("scheduled", ())),
    )


def _candidates(request: ViewRequest[Any], found: Overview) -> Iterator[StoredJob]:
    """A few of each place, without deliveries of webhooks: these have a view of their own."""
    busy = sorted((view for view in found.workers if view.raw), key=lambda view: view.since_ms, reverse=True)
    every = Conditions(JobFilter())
    for place, raws in {PROCESSING: tuple(view.raw for view in busy), **found.first}.items():
        jobs = outlined(request.broker, raws[:_LOOKED_AT], place, every).jobs
        own = [one for one in jobs if one.job is None or one.job.type != DELIVERY_TYPE]
        yield from own if place == "scheduled" else own[:_JOBS]


def changed_ms(stored: StoredJob) -> int:
    """When something happened to the job last. A deferred job is claimed again and again, which is no news."""
    record = stored.record
    if record is None or stored.state is State.DEFERRED:
        return stored.time_ms
    return max(record.created_ms, record.started_ms, record.ended_ms, record.since_ms)


def _chart(hours: Sequence[HourStats], chosen: str) -> Any:
    per_label = 1 if chosen == "24h" else 24
    labels = [one.hour[11:16] if per_label == 1 else one.hour[5:10] for one in hours]
    series = [("a", [one.completed for one in hours]), ("b", [one.failed for one in hours])]
    return line_chart(series, labels, title=f"Jobs per hour, last {chosen}")


def breaker_banners(breakers: Sequence[BreakerDocument], deferred: Mapping[str, int], is_more: bool) -> list[Banner]:
    """One for each route, however many processes have opened its breaker. `deferred` counts deferred jobs by their
    reason, `is_more`: there may be more. Workers report how many jobs they have deferred, a moment later."""
    routes: dict[str, list[BreakerDocument]] = defaultdict(list)
    for one in breakers:
        routes[one.route].append(one)
    found = []
    for route, opened in routes.items():
        where = "1 worker process" if len(opened) == 1 else f"{len(opened)} worker processes"
        text = f"The breaker of {route} is open in {where}: too many of its jobs failed."
        links: tuple[tuple[str, str], ...] = (("/dashboard/workers", "Workers"),)
        found_here, reported = deferred.get(reason_of(route), 0), sum(one.deferred for one in opened)
        if count := max(found_here, reported):
            or_more = "or more " if is_more and not reported else ""
            jobs = "1 job is" if count == 1 and not or_more else f"{number(count)} {or_more}jobs are"
            text = f"{text} {jobs} deferred."
            links = (("/dashboard/jobs?status=deferred", "Deferred jobs"), *links)
        tries = [one.next_probe_at for one in opened if one.next_probe_at]
        found.append(Banner(text, links=links, until=min(tries, default=None)))
    return found


def _banners(
    queues: Sequence[QueueStats], workers: Sequence[WorkerDocument], recent: Recent, pauses: Mapping[str, PauseNote]
) -> list[Banner]:
    found = []
    links = (("/dashboard/workers", "Workers"),)
    waiting = sum(queue.length for queue in queues)
    living = [process for process in workers if process.is_alive]
    if waiting and not living:
        text = f"{number(waiting)} pending jobs and no worker is running. Start one: fileq worker"
        found.append(Banner(text, is_bad=True, links=links))
    found += breaker_banners([one for process in living for one in process.breakers], recent.deferred, recent.is_more)
    for process in workers:
        if process.lost_roots:
            text = f"{process.host} ({process.pid}): {'; '.join(process.lost_roots)}. File jobs there are deferred."
            found.append(Banner(text, is_bad=True, links=links))
    paused = [queue for queue in queues if queue.is_paused]
    if paused:
        waiting = sum(queue.length for queue in paused)
        jobs = "1 pending job" if waiting == 1 else f"{number(waiting)} pending jobs"
        names = (f"{one.name} ({pause_words(pauses[one.name])})" if one.name in pauses else one.name for one in paused)
        text = f"Paused: {', '.join(names)}. {jobs}."
        found.append(Banner(text, links=(("/dashboard/queues", "Queues"),)))
    return found
