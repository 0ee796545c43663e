"""How the SQLite broker settles a claim: job, record, slot, ledger and counters in one transaction.

Never decides: the settlement says where the job goes. A slot that no longer holds the job changes nothing.
"""

from __future__ import annotations

from fileq.brokers import wire_events
from fileq.brokers.sqlite.batch_counts import count_member
from fileq.brokers.sqlite.entries import add_follow_ups
from fileq.brokers.sqlite.outputs import keep_outputs
from fileq.brokers.sqlite.rows import RecordRow, SlotRow
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.brokers.sqlite.withdrawals import take_waiting
from fileq.brokers.types import Attempt
from fileq.core.batch import Ending
from fileq.core.job import State
from fileq.core.settlement import Settlement, SettleResult, Verb, deferred_again

ENDINGS = {Verb.COMPLETE: Ending.COMPLETED, Verb.BURY: Ending.DEAD, Verb.CANCEL: Ending.CANCELLED}


def settle(work: UnitOfWork, s: Settlement) -> SettleResult:
    """Settles for a live slot. The fence is the job that the slot holds; its last token identifies a repeat."""
    slot_row = work.slot(s.claim.slot)
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
    record = work.record(s.claim.id)
    if record is None or (record.raw, record.queue) != (s.claim.raw, s.claim.queue):
        return SettleResult.FENCED
    if not State(record.state).is_waiting:
        return SettleResult.FENCED
    found = work.db.execute("DELETE FROM deadlines WHERE id = ? RETURNING position", (record.id,)).fetchone()
    if found is not None and found[0] is not None:
        work.queued.locate_at(record.queue, record.raw, found[0])
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
    record = work.record(s.claim.id)
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
        order = (s.claim.id, s.claim.slot, work.now_ms, s.order)
        work.db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)", order)


def _move(work: UnitOfWork, s: Settlement, record: RecordRow) -> None:
    if s.verb is Verb.COMPLETE:
        record.result = s.result
        keep_outputs(work, record, s.outputs)
        work.end(record, State.COMPLETED)
        work.count("superseded", int(s.superseded))
        if s.leaves is not None:
            work.ledger.learn(s.leaves, record.id)
    elif s.verb is Verb.RETRY:
        work.schedule(record, State.RETRYING, work.now_ms + s.delay_ms, work.now_ms)
    elif s.verb is Verb.DEFER:
        record.deferred_count += 1
        deferrals_ms = deferred_again(record.facts.deferrals_ms, record.deferred_count, work.now_ms)
        record.change_facts(deferrals_ms=deferrals_ms)
        work.schedule(record, State.RETRYING, work.now_ms + s.delay_ms, work.now_ms)
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
