"""What an operator asks of a running system: cancel a job, pause and resume a queue, see the workers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult
from fileq.commands.admin.stats import Process, processes
from fileq.commands.admin.text import stamp
from fileq.core.errors import ConfigError


class JobCancellation(Struct, frozen=True):
    """`cancelled`, `requested` (its worker ends it within a renewal), `ended` (too late) or `unknown`."""

    id: str
    result: str
    state: str | None


class Cancellation(Struct, frozen=True):
    results: tuple[JobCancellation, ...]
    within_s: float  # a running job is told of it

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("ended", "unknown") for result in self.results)


class Pausing(Struct, frozen=True):
    queue: str
    is_paused: bool
    has_changed: bool
    waiting: int


class Workers(Struct, frozen=True):
    at: str
    workers: tuple[Process, ...]
    slots: int
    busy: int


def cancel(broker: FullBroker, ids: Sequence[str], heartbeat_ttl_s: float) -> Cancellation:
    answers = broker.cancel(ids)
    records = broker.records(ids)
    results = tuple(
        JobCancellation(id, answer.value, record.state.value if record is not None else None)
        for id, answer, record in zip(ids, answers, records, strict=True)
    )
    return Cancellation(results, heartbeat_ttl_s / 3)


def describe(result: JobCancellation, within_s: float) -> str:
    match CancelResult(result.result):
        case CancelResult.CANCELLED:
            return "cancelled"
        case CancelResult.REQUESTED:
            return f"is running; its worker ends it within {within_s:.0f} s"
        case CancelResult.ENDED:
            if result.state in ("pending", "scheduled", "retrying"):
                return f"is {result.state} by its record, and not there; see 'fileq fsck'"
            return f"is {result.state or 'ended'} already; nothing was done"
        case CancelResult.UNKNOWN:
            return "no such job is known (any more)"


def set_paused(broker: FullBroker, queue: str, queues: Sequence[str], *, paused: bool) -> Pausing:
    """Repeated, it changes nothing."""
    if queue not in queues:
        raise ConfigError(f"no queue is called {queue!r}; there are {', '.join(queues)}")
    census = broker.census()
    (broker.pause if paused else broker.resume)(queue)
    return Pausing(queue, paused, (queue in census.paused) != paused, census.pending[queue])


def workers(broker: FullBroker) -> Workers:
    overview = broker.overview(1)
    found = processes(overview.workers, overview.census.now_ms)
    return Workers(stamp(overview.census.now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found))
