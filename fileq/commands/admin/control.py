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


def workers(broker: FullBroker) -> WorkerList:
    overview = broker.overview(1)
    found = processes(overview.workers, overview.census.now_ms)
    return WorkerList(
        stamp(overview.census.now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found)
    )
