"""Controls a running system: cancels jobs, pauses and resumes queues, lists the workers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult
from fileq.commands.admin.formatting import stamp
from fileq.commands.admin.stats import WorkerProcess, processes
from fileq.core.errors import ConfigError


class JobCancellation(Struct, frozen=True):
    """`cancelled`, `requested` (its worker stops it at the next renewal), `ended` (too late) or `unknown`."""

    id: str
    result: str
    state: str | None


class Cancellation(Struct, frozen=True):
    results: tuple[JobCancellation, ...]
    within_s: float  # time until the worker of a running job stops it

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("ended", "unknown") for result in self.results)


class PauseResult(Struct, frozen=True):
    queue: str
    is_paused: bool
    has_changed: bool
    waiting: int


class WorkerList(Struct, frozen=True):
    at: str
    workers: tuple[WorkerProcess, ...]
    slots: int
    busy: int


def cancel(broker: FullBroker, ids: Sequence[str], heartbeat_ttl_s: float) -> Cancellation:
    outcomes = broker.cancel(ids)
    records = broker.records(ids)
    results = tuple(
        JobCancellation(id, outcome.value, record.state.value if record is not None else None)
        for id, outcome, record in zip(ids, outcomes, records, strict=True)
    )
    return Cancellation(results, heartbeat_ttl_s / 3)


def describe(result: JobCancellation, within_s: float) -> str:
    match CancelResult(result.result):
        case CancelResult.CANCELLED:
            return "cancelled"
        case CancelResult.REQUESTED:
            return f"is running; its worker stops it within {within_s:.0f} s"
        case CancelResult.ENDED:
            if result.state in ("pending", "scheduled", "retrying"):
                return f"is {result.state} according to its record, but was not found; run 'fileq fsck'"
            return f"is already {result.state or 'ended'}; nothing was done"
        case CancelResult.UNKNOWN:
            return "is unknown: it never existed, or its record has expired"


def set_paused(broker: FullBroker, queue: str, queues: Sequence[str], *, paused: bool) -> PauseResult:
    """Pauses or resumes a queue. Idempotent."""
    if queue not in queues:
        raise ConfigError(f"no queue is named {queue!r}; the queues are {', '.join(queues)}")
    census = broker.census()
    (broker.pause if paused else broker.resume)(queue)
    return PauseResult(queue, paused, (queue in census.paused) != paused, census.pending[queue])


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


def reset_breaker(broker: FullBroker, route: str, heartbeat_ttl_s: float) -> BreakerReset:
    """Requests that all workers close the breakers of this route, or with "" of all routes, at their next renewal."""
    reported = tuple(
        ReportedBreaker(process.host, process.pid, one.route, one.state, one.error)
        for process in workers(broker).workers
        for one in process.breakers
        if route in ("", one.route)
    )
    broker.reset_breaker(route)
    return BreakerReset(route, reported, heartbeat_ttl_s / 3)


def workers(broker: FullBroker) -> WorkerList:
    overview = broker.overview(1)
    found = processes(overview.workers, overview.census.now_ms)
    return WorkerList(
        stamp(overview.census.now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found)
    )
