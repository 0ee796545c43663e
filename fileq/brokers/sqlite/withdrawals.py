"""How the SQLite broker takes jobs that wait from their places, and cancels them, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.sqlite.batch_counts import count_member
from fileq.brokers.sqlite.entries import add_follow_ups
from fileq.brokers.sqlite.rows import RecordRow
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.brokers.types import CLEAR_REACH, CancelResult
from fileq.core.batch import Ending
from fileq.core.job import Job, State, decode_or_none
from fileq.core.outcome import FollowUp

_CANCELS = "cancels"  # a row beside the revisions of the kinds of documents


def count_cancel_request(work: UnitOfWork) -> None:
    sql = "INSERT INTO catalog_revisions VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1"
    work.db.execute(sql, (_CANCELS,))


def cancel_requests(db: sqlite3.Connection) -> int:
    found = db.execute("SELECT revision FROM catalog_revisions WHERE kind = ?", (_CANCELS,)).fetchone()
    return found[0] if found is not None else 0


def cancel(work: UnitOfWork, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]]) -> list[CancelResult]:
    """Cancels jobs that wait, and requests it of those that run. The list of cancelled jobs is trimmed at the end."""
    results = [_cancel(work, work.record(id), follow_ups.get(id, ())) for id in ids]
    if CancelResult.CANCELLED in results:
        work.trim_ended(State.CANCELLED)
    return results


def _cancel(work: UnitOfWork, record: RecordRow | None, follow_ups: Sequence[FollowUp]) -> CancelResult:
    if record is None:
        return CancelResult.UNKNOWN
    if record.state == State.RUNNING:
        if not record.is_cancel_requested:
            work.change_record(record).is_cancel_requested = True
            count_cancel_request(work)
        return CancelResult.REQUESTED
    if not take_waiting(work, record):
        return CancelResult.ENDED
    _end_withdrawn(work, work.change_record(record), follow_ups)
    return CancelResult.CANCELLED


def take_waiting(work: UnitOfWork, record: RecordRow) -> bool:
    """Removes a job that waits from its place; False if it is not there."""
    if record.state == State.PENDING and work.queued.remove_newest(record.queue, record.raw):
        record.queued -= 1
        return True
    return record.state in (State.SCHEDULED, State.RETRYING) and work.unschedule(record.raw)


def clear(
    work: UnitOfWork, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]]
) -> list[bool]:
    """Cancels those of these jobs that are near the front of the queue, and says which."""
    positions: dict[bytes, deque[int]] = defaultdict(deque)
    for position, raw in work.queued.raws(queue, CLEAR_REACH):
        positions[raw].append(position)
    jobs = [decode_or_none(raw) if raw in positions else None for raw in raws]
    work.read_records(job.id for job in jobs if job is not None)
    taken: list[int] = []
    cleared = [False] * len(raws)
    for i, (raw, job) in enumerate(zip(raws, jobs, strict=True)):
        if job is None or not positions[raw] or (record := _withdrawn(work, queue, raw, job)) is None:
            continue
        taken.append(positions[raw].popleft())
        cleared[i] = True
        _end_withdrawn(work, record, follow_ups.get(job.id, ()))
    work.queued.remove_anywhere(queue, taken)
    if taken:
        work.trim_ended(State.CANCELLED)
    return cleared


def _withdrawn(work: UnitOfWork, queue: str, raw: bytes, job: Job) -> RecordRow | None:
    """The record of a job that leaves its queue; None for a copy of a job that is somewhere else."""
    found = work.record(job.id)
    if found is not None and State(found.state).is_unfinished and found.state != State.PENDING:
        return None
    if work.is_foreign(raw, job, State.PENDING):
        return None
    record = work.record_for(job.id, queue, raw)
    record.raw, record.queue = raw, queue
    if record.queued:
        record.queued -= 1
    else:
        work.count("adopted")
    return record


def _end_withdrawn(work: UnitOfWork, record: RecordRow, follow_ups: Sequence[FollowUp]) -> None:
    """Ends a job that has left its place as cancelled. The caller trims the list of cancelled jobs."""
    record.error, record.deferred = "cancelled", ""
    work.end(record, State.CANCELLED)
    work.publish(wire_events.cancelled(record.id, record.queue, record.raw) if work.has_subscribers else b"")
    add_follow_ups(work, record, follow_ups)
    if record.batch:
        count_member(work, record.batch, record.id, Ending.CANCELLED, record.error)
