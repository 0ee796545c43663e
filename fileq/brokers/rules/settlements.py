"""How a job ends, or waits again: settlements of claims, and withdrawals of jobs that wait.

Never decides: the settlement says where the job goes. A slot that no longer holds the job changes nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.protocol import Order
from fileq.brokers.rules.batches import count_member, is_batch_cancelled
from fileq.brokers.rules.entries import add_follow_ups
from fileq.brokers.rules.rows import RecordRow, SlotRow
from fileq.brokers.rules.unit_of_work import CANCELS, UnitOfWork
from fileq.brokers.types import CLEAR_REACH, Attempt, CancelResult
from fileq.core.batch import Ending
from fileq.core.job import DELAYED_STATES, Job, State, decode_or_none
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import Settlement, SettleResult, Verb

ENDINGS = {Verb.COMPLETE: Ending.COMPLETED, Verb.BURY: Ending.DEAD, Verb.CANCEL: Ending.CANCELLED}


def settle(work: UnitOfWork, s: Settlement) -> SettleResult:
    """Settles for a live slot. The fence is the job that the slot holds; its last token identifies a repeat."""
    slot_row = work.slots.get(s.claim.slot)
    if slot_row is not None and slot_row.settled_token == s.claim.token:
        return SettleResult.DONE_ALREADY
    # The older token rejects a late call about bytes that the slot settled and then claimed again.
    if slot_row is None or s.claim.token < (slot_row.settled_token or 0) or slot_row.raw != s.claim.raw:
        work.count("fenced")
        return SettleResult.FENCED
    _apply(work, s, slot_row)
    slot_row.settled_token = s.claim.token
    work.renew_heartbeat(slot_row)
    return SettleResult.DONE


def reap(work: UnitOfWork, slot_row: SlotRow, s: Settlement) -> SettleResult:
    """Settles for a dead slot: the first reaper moves the job, the others are FENCED."""
    if slot_row.raw != s.claim.raw:
        return SettleResult.FENCED
    _apply(work, s, slot_row)
    return SettleResult.DONE


def bury_overdue(work: UnitOfWork, s: Settlement) -> SettleResult:
    """Settles for a job that waits, as if a slot had claimed it now."""
    record = work.records.get(s.claim.id)
    if record is None or (record.raw, record.queue) != (s.claim.raw, s.claim.queue):
        return SettleResult.FENCED
    if not State(record.state).is_waiting:
        return SettleResult.FENCED
    position = work.take_deadline(record.id)
    if position is not None:
        work.queued.locate_at(record.queue, record.raw, position)
    if not take_waiting(work, record):
        return SettleResult.FENCED
    record.started_ms, record.due_ms = work.now_ms, 0
    _end(work, s)
    return SettleResult.DONE


def _apply(work: UnitOfWork, s: Settlement, slot_row: SlotRow) -> None:
    work.change_slot(slot_row).raw = None
    _end(work, s)


def _end(work: UnitOfWork, s: Settlement) -> None:
    """Settles for a job that has left its place."""
    record = work.records.get(s.claim.id)
    if record is not None and not record.is_about(s.claim.raw):
        _bury_foreign(work, s)
        return
    record = None
    if s.claim.record_id is None and s.verb is Verb.RELEASE:
        work.push_undecodable(s.claim.queue, s.next_raw, front=True)
    else:
        record = work.record_for(s.claim.id, s.claim.queue, s.next_raw)
        if s.verb is not Verb.DEFER:
            facts = (s.outcome, s.error, s.traceback, s.output, s.duration_ms, record.deferred, s.verb is Verb.BURY)
            record.add_attempt(Attempt(record.started_ms, work.now_ms, s.claim.slot, *facts))
            record.error = s.error
        record.raw, record.slot, record.queue, record.deferred = s.next_raw, s.claim.slot, s.claim.queue, s.reason
        _move(work, s, record)
        _keep_order(work, s)
    _count(work, s)
    work.publish(wire_events.settled(s) if work.has_subscribers else b"")
    add_follow_ups(work, record, s.follow_ups)
    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:
        count_member(work, record.batch, record.id, ending, s.error)
    if s.verb in (Verb.COMPLETE, Verb.CANCEL):
        work.trim_ended(State.COMPLETED if s.verb is Verb.COMPLETE else State.CANCELLED)


def _bury_foreign(work: UnitOfWork, s: Settlement) -> None:
    """A job of fileq's own has come in under the id of this one while it ran, and has the record now."""
    work.bury_foreign(s.claim.slot, s.claim.queue, s.claim.raw, s.claim.id)
    _keep_order(work, s)
    work.publish(wire_events.settled(s) if work.has_subscribers else b"")
    add_follow_ups(work, None, s.follow_ups)


def _keep_order(work: UnitOfWork, s: Settlement) -> None:
    if s.order:
        work.put_order(Order(s.claim.id, s.claim.slot, work.now_ms, s.order))


def _move(work: UnitOfWork, s: Settlement, record: RecordRow) -> None:
    if s.verb is Verb.COMPLETE:
        record.result = s.result
        _keep_outputs(work, record, s.outputs)
        work.end(record, State.COMPLETED)
        work.count("superseded", int(s.superseded))
        if s.leaves is not None:
            work.learn(s.leaves, record.id)
    elif s.verb is Verb.RETRY:
        work.schedule(record, State.RETRYING, work.now_ms + s.delay_ms, work.now_ms)
    elif s.verb is Verb.DEFER:
        record.deferred_count += 1
        record.change_facts(deferrals_ms=(record.facts.deferrals_ms[0] or work.now_ms, work.now_ms))
        work.schedule(record, State.DEFERRED, work.now_ms + s.delay_ms, work.now_ms)
    elif s.verb is Verb.BURY:
        record.change_facts(fingerprint=s.fingerprint)
        work.bury(record)
    elif s.verb is Verb.RELEASE:
        work.push(record, front=True)
    else:
        work.end(record, State.CANCELLED)


def _count(work: UnitOfWork, s: Settlement) -> None:
    if s.died:
        work.count("recovered")
    elif s.verb is Verb.RELEASE:
        work.count("released")
    elif s.is_failure:
        work.count("failed")
        work.count("retried", int(s.verb is Verb.RETRY))
    if s.kind:
        work.count(f"error:{s.kind}")


def _keep_outputs(work: UnitOfWork, record: RecordRow, outputs: Sequence[Output]) -> None:
    """Keeps the outputs of a job that is completed."""
    if outputs:
        record.change_facts(outputs=tuple(outputs))
        expires_ms = work.now_ms + int(work.config.worker.history_ttl * 1000)
        work.put_outputs([output.path for output in outputs], record.id, expires_ms)
        work.forget_outputs()


def cancel(
    work: UnitOfWork,
    ids: Sequence[str],
    follow_ups: Mapping[str, Sequence[FollowUp]],
    *,
    in_cancelled_batch: bool = False,
) -> list[CancelResult]:
    """Cancels jobs that wait, and requests it of those that run. The list of cancelled jobs is trimmed at the end."""
    results = []
    for id in ids:
        record = work.records.get(id)
        is_kept = in_cancelled_batch and record is not None and not is_batch_cancelled(work, record)
        results.append(CancelResult.KEPT if is_kept else _cancel(work, record, follow_ups.get(id, ())))
    if CancelResult.REQUESTED in results:
        work.next_revision(CANCELS)
    if CancelResult.CANCELLED in results:
        work.trim_ended(State.CANCELLED)
    return results


def _cancel(work: UnitOfWork, record: RecordRow | None, follow_ups: Sequence[FollowUp]) -> CancelResult:
    if record is None:
        return CancelResult.UNKNOWN
    if record.state == State.RUNNING:
        if record.is_cancel_requested:
            return CancelResult.REQUESTED_BEFORE
        work.change_record(record).is_cancel_requested = True
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
    return record.state in DELAYED_STATES and work.unschedule(record.raw)


def clear(
    work: UnitOfWork, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]]
) -> list[bool]:
    """Cancels those of these jobs that are near the front of the queue, and says which."""
    positions: dict[bytes, deque[int]] = defaultdict(deque)
    for position, raw in work.queued.first(queue, CLEAR_REACH):
        positions[raw].append(position)
    jobs = [decode_or_none(raw) if raw in positions else None for raw in raws]
    work.records.read(job.id for job in jobs if job is not None)
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
    found = work.records.get(job.id)
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
