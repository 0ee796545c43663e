"""Controls a running system: cancels jobs, pauses and resumes queues, lists the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from fileq.brokers.catalog import Document
from fileq.brokers.lost_workers import KIND as LOST
from fileq.brokers.lost_workers import LostWorker, lost_workers_in
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult, Overview, Record
from fileq.commands.admin.pause_notes import PauseNote, end_note, pause_notes, write_note
from fileq.commands.admin.route_check import check_route, is_configured
from fileq.commands.admin.stats import WorkerProcess, processes
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, decode_or_none, stamp
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import is_own_type
from fileq.core.units import two_units
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_selection import select

WOULD_CANCEL = "would_cancel"
_UNFINISHED = (State.RUNNING, State.PENDING, State.RETRYING, State.SCHEDULED)
_BATCH = 500  # each call searches the queue once; on SQLite it is one transaction of about 0.1 s
_READINGS = 5  # how often one `cancel --all` reads the queues

# What is enqueued with the cancellation of each of these jobs: the deliveries of webhooks.
FollowUpsOf: TypeAlias = Callable[[Sequence[str]], Mapping[str, Sequence[FollowUp]] | None]


class JobCancellation(Struct, frozen=True):
    """`cancelled`, `requested` (its worker stops it at the next renewal), `ended` (too late) or `unknown`.

    A dry run has `would_cancel` instead of the first two."""

    id: str
    result: str
    state: str | None
    filepath: str = ""


class Cancellation(Struct, frozen=True):
    """`count` jobs were cancelled or requested to stop, or would be. With --all only the first 1000 are named."""

    results: tuple[JobCancellation, ...]
    within_s: float  # time until the worker of a running job stops it
    count: int
    is_dry_run: bool

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("ended", "unknown") for result in self.results)


class PauseResult(Struct, frozen=True):
    """`reason` is why it is paused, `old_reason` why it was before the command; "" if no reason is known."""

    queue: str
    is_paused: bool
    has_changed: bool
    waiting: int
    reason: str = ""
    old_reason: str = ""


class WorkerList(Struct, frozen=True):
    """`lost` are processes that died within the last hour and that a reaper has removed, the newest first."""

    at: str
    workers: tuple[WorkerProcess, ...]
    slots: int
    busy: int
    lost: tuple[LostWorker, ...] = ()


def _nothing(ids: Sequence[str]) -> None:
    return None


def cancel(
    broker: FullBroker,
    ids: Sequence[str],
    heartbeat_ttl_s: float,
    *,
    is_dry_run: bool = False,
    follow_ups: FollowUpsOf = _nothing,
) -> Cancellation:
    if is_dry_run:
        outcomes = [_would_be(record) for record in broker.records(ids)]
    else:
        outcomes = [outcome.value for outcome in broker.cancel(ids, follow_ups(ids))]
    results = tuple(map(_cancellation, ids, outcomes, broker.records(ids)))
    return Cancellation(results, heartbeat_ttl_s / 3, _count(results), is_dry_run)


def cancel_all(
    broker: FullBroker,
    queues: Sequence[str],
    wanted: JobFilter,
    heartbeat_ttl_s: float,
    *,
    is_dry_run: bool = False,
    shown: int = 1000,
    follow_ups: FollowUpsOf = _nothing,
) -> Cancellation:
    """Cancels every job that meets the conditions and has not ended. The report counts all and names the first `shown`.

    Reads the queues while they change, so one reading may miss a job: reads them again until nothing more is found, a
    few times at most, because a producer may add jobs faster. A kill -9 leaves each job cancelled or untouched, and the
    command can be repeated."""
    states = wanted.states(_UNFINISHED, "only jobs that have not ended can be cancelled")
    named: list[JobCancellation] = []
    handled: set[str] = set()
    count = 0
    for _ in range(1 if is_dry_run else _READINGS):
        found = select(broker, queues, wanted, states)
        ids = [one.id for one in found if one.id not in handled and (wanted.type or not _is_own(one.job))]
        ids = list(dict.fromkeys(ids))[: None if wanted.limit is None else wanted.limit - count]
        for start in range(0, len(ids), _BATCH):
            some = ids[start : start + _BATCH]
            batch = cancel(broker, some, heartbeat_ttl_s, is_dry_run=is_dry_run, follow_ups=follow_ups)
            count += batch.count
            named += [result for result in batch.results if result.result not in ("ended", "unknown")]
            del named[shown:]
        handled.update(ids)
        if not ids or count == wanted.limit:
            break
    return Cancellation(tuple(named), heartbeat_ttl_s / 3, count, is_dry_run)


def _is_own(job: Job | None) -> bool:
    """Whether it is a delivery of a webhook. Those about the cancellations themselves must not be cancelled."""
    return job is not None and is_own_type(job.type)


def _cancellation(id: str, result: str, record: Record | None) -> JobCancellation:
    if record is None:
        return JobCancellation(id, result, None)
    job = decode_or_none(record.raw)
    return JobCancellation(id, result, record.state.value, job.filepath if job is not None else "")


def _would_be(record: Record | None) -> str:
    if record is None:
        return CancelResult.UNKNOWN.value
    return WOULD_CANCEL if record.state in _UNFINISHED else CancelResult.ENDED.value


def _count(results: Sequence[JobCancellation]) -> int:
    done = (CancelResult.CANCELLED.value, CancelResult.REQUESTED.value, WOULD_CANCEL)
    return sum(result.result in done for result in results)


def describe(result: JobCancellation, within_s: float) -> str:
    if result.result == WOULD_CANCEL:
        return f"would be cancelled; it is {result.state}"
    match CancelResult(result.result):
        case CancelResult.CANCELLED:
            return "cancelled"
        case CancelResult.REQUESTED:
            from fileq.worker.executors.protocol import CANCEL_GRACE_S  # with it come parts of the worker

            return (
                f"is running; its worker sets context.cancelled within {two_units(within_s)}, "
                f"and stops it by force {two_units(CANCEL_GRACE_S)} later if it still runs"
            )
        case CancelResult.ENDED:
            if result.state in ("pending", "scheduled", "retrying"):
                return f"is {result.state} according to its record, but was not found; run 'fileq fsck'"
            return f"is already {result.state or 'ended'}; nothing was done"
        case CancelResult.UNKNOWN:
            return "is unknown: it never existed, or its record has expired"


def check_queues(named: Sequence[str], queues: Sequence[str]) -> None:
    """ConfigError for names that are not queues, all of them at once."""
    known = ", ".join(queues)
    if unknown := [name for name in named if name not in queues]:
        raise ConfigError([f"no queue is named {name!r}; the queues are {known}" for name in unknown])


def set_paused(
    broker: FullBroker, queue: str, queues: Sequence[str], *, paused: bool, by: str, reason: str = ""
) -> PauseResult:
    """Pauses or resumes a queue. Idempotent. `by` is who does it: others see who has paused a queue, and the reason. A
    reason for a queue that is paused already replaces the one before."""
    check_queues([queue], queues)
    census = broker.census()
    has_changed = (queue in census.paused) != paused
    note = pause_notes(broker).get(queue)
    old_reason = note.reason if note is not None and queue in census.paused else ""
    if not paused:
        end_note(broker, queue, note if has_changed else None, census.now_ms)
        broker.resume(queue)
        return PauseResult(queue, False, has_changed, census.pending[queue], "", old_reason)
    broker.pause(queue)
    reason = reason.strip()
    if has_changed or note is None:
        note = PauseNote(by, stamp(census.now_ms) or "", reason) if has_changed or reason else None
    elif reason:
        note = PauseNote(note.by, note.at, reason)
    if note is not None:
        write_note(broker, queue, note)
    return PauseResult(
        queue, True, has_changed, census.pending[queue], note.reason if note is not None else "", old_reason
    )


class ReportedBreaker(Struct, frozen=True):
    """A breaker that a worker reports as open or half-open."""

    host: str
    pid: int
    route: str
    state: str
    error: str


class BreakerReset(Struct, frozen=True):
    route: str
    open: tuple[ReportedBreaker, ...]
    within_s: float  # time until every worker has read the request
    is_configured: bool  # the configuration of the command has this route


def reset_breaker(broker: FullBroker, config: Config, route: str) -> BreakerReset:
    """Requests that all workers close the breakers of this route, or with "" of all routes, at their next renewal.

    ConfigError for a name that no worker reports and that the configuration does not have."""
    reported = tuple(
        ReportedBreaker(process.host, process.pid, one.route, one.state, one.error)
        for process in workers(broker).workers
        for one in process.breakers
    )
    check_route(route, config, [one.route for one in reported])
    broker.reset_breaker(route)
    wanted = tuple(one for one in reported if route in ("", one.route))
    return BreakerReset(route, wanted, config.worker.heartbeat_ttl / 3, is_configured(route, config))


def workers(broker: FullBroker) -> WorkerList:
    """Two round trips."""
    return workers_in(broker.overview(1), broker.documents(LOST))


def workers_in(overview: Overview, documents: Mapping[str, Document]) -> WorkerList:
    """The processes of this overview, and those that died: `documents` are those of the kind LOST."""
    now_ms = overview.census.now_ms
    found = processes(overview.workers, now_ms)
    known = {(process.host, process.pid) for process in found}  # such as one that was only frozen
    lost = [one for one in lost_workers_in(documents, now_ms) if (one.host, one.pid) not in known]
    return WorkerList(stamp(now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found), tuple(lost))
