"""How the memory broker takes jobs that wait from their places, and cancels them. The caller holds the lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.memory.batch_counts import count_member
from fileq.brokers.memory.entries import add_follow_ups
from fileq.brokers.memory.store import MemoryRecord, MemoryStore
from fileq.brokers.types import CancelResult
from fileq.core.batch import Ending
from fileq.core.job import State
from fileq.core.outcome import FollowUp


def cancel(
    store: MemoryStore, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]], now_ms: int
) -> list[CancelResult]:
    """Cancels jobs that wait, and requests it of those that run. The list of cancelled jobs is trimmed at the end."""
    results = [_cancel(store, store.records.get(id), follow_ups.get(id, ()), now_ms) for id in ids]
    store.trim_ended(State.CANCELLED)
    return results


def _cancel(
    store: MemoryStore, record: MemoryRecord | None, follow_ups: Iterable[FollowUp], now_ms: int
) -> CancelResult:
    if record is None:
        return CancelResult.UNKNOWN
    if record.state is State.RUNNING:
        store.cancel_requests += not record.is_cancel_requested
        record.is_cancel_requested = True
        return CancelResult.REQUESTED
    if not take_waiting(store, record):
        return CancelResult.ENDED
    end_withdrawn(store, record, follow_ups, now_ms)
    return CancelResult.CANCELLED


def take_waiting(store: MemoryStore, record: MemoryRecord) -> bool:
    """Removes a job that waits from its place; False if it is not there."""
    if record.state is State.PENDING and record.raw in store.queues[record.queue]:
        store.queues[record.queue].remove(record.raw)
        record.queued -= 1
    elif record.state in (State.SCHEDULED, State.RETRYING) and record.raw in store.scheduled:
        del store.scheduled[record.raw]
    else:
        return False
    return True


def end_withdrawn(store: MemoryStore, record: MemoryRecord, follow_ups: Iterable[FollowUp], now_ms: int) -> None:
    """Ends a job that has left its place as cancelled. The caller trims the list of cancelled jobs."""
    record.error, record.deferred = "cancelled", ""
    store.end(record, State.CANCELLED, now_ms)
    store.publish(now_ms, wire_events.cancelled(record.id, record.queue, record.raw))
    add_follow_ups(store, record, follow_ups, now_ms)
    count_member(store, record.batch, record.id, Ending.CANCELLED, record.error, now_ms)
