"""Queues with their rates, and worker processes with the jobs that they run. Only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from fileq.actions.bulk import JobAction
from fileq.brokers.lost_workers import LOST_WORKERS
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview, Record
from fileq.commands.action_log import ACTIONS, LoggedAction
from fileq.commands.admin.running_workers import workers_in
from fileq.core.job import decode_or_none, parse_time
from fileq.queries.documents import WorkerDocument
from fileq.queries.job_ids import id_in
from fileq.server.api.queue_endpoints import MINUTE_SAMPLES, QueueDocument, queue_list, shown_workers
from fileq.server.console.charts import bar, sample_chart
from fileq.server.console.view import ViewList, ViewRequest
from fileq.server.route import NoQuery

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
    found = request.shown(shown_workers(request, workers_in(overview, lost)))
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
