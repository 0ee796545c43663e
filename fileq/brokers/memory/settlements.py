"""How the memory broker settles a claim: job, record, ledger and counters in one step under the store's lock.

Never decides: the settlement says where the job goes. A slot that no longer holds the job changes nothing.
"""

from __future__ import annotations

from fileq.brokers import wire_events
from fileq.brokers.file_orders import Order
from fileq.brokers.memory.batch_counts import count_member
from fileq.brokers.memory.entries import add_follow_ups
from fileq.brokers.memory.store import MemoryRecord, MemoryStore
from fileq.brokers.memory.withdrawals import take_waiting
from fileq.brokers.types import Attempt
from fileq.core.batch import Ending
from fileq.core.job import State
from fileq.core.settlement import Settlement, SettleResult, Verb, deferred_again

ENDINGS = {Verb.COMPLETE: Ending.COMPLETED, Verb.BURY: Ending.DEAD, Verb.CANCEL: Ending.CANCELLED}


def settle(store: MemoryStore, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a live slot. The fence is the slot's processing list; its last token identifies a repeat."""
    slot = s.claim.slot
    if store.settled_tokens.get(slot) == s.claim.token:
        return SettleResult.DONE_ALREADY
    # The older token rejects a late call about bytes that the slot settled and then claimed again.
    if s.claim.token < store.settled_tokens.get(slot, 0) or s.claim.raw not in store.processing[slot]:
        store.count(now_ms, "fenced")
        return SettleResult.FENCED
    _apply(store, s, now_ms)
    store.settled_tokens[slot] = s.claim.token
    store.renew_heartbeat(slot, now_ms)
    return SettleResult.DONE


def reap(store: MemoryStore, slot: str, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a dead slot: the first reaper moves the job, the others are FENCED."""
    if s.claim.raw not in store.processing[slot]:
        return SettleResult.FENCED
    _apply(store, s, now_ms)
    return SettleResult.DONE


def bury_overdue(store: MemoryStore, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a job that waits, as if a slot had claimed it now."""
    record = store.records.get(s.claim.id)
    if record is None or (record.raw, record.queue) != (s.claim.raw, s.claim.queue) or not record.state.is_waiting:
        return SettleResult.FENCED
    store.deadlines.pop(record.id, None)
    if not take_waiting(store, record):
        return SettleResult.FENCED
    record.started_ms, record.due_ms = now_ms, 0
    _end(store, s, now_ms)
    return SettleResult.DONE


def _apply(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    store.processing[s.claim.slot].remove(s.claim.raw)
    _end(store, s, now_ms)


def _end(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    """Settles for a job that has left its place."""
    record = store.records.get(s.claim.id)
    if record is not None and not record.is_about(s.claim.raw):
        _bury_foreign(store, s, now_ms)
        return
    record = None
    if s.claim.record_id is None and s.verb is Verb.RELEASE:
        store.push_undecodable(s.claim.queue, s.next_raw, front=True, now_ms=now_ms)
    else:
        record = store.record_for(s.claim.id, s.claim.queue, s.next_raw, now_ms)
        if s.verb is not Verb.DEFER:
            facts = (s.outcome, s.error, s.traceback, s.output, s.duration_ms, record.deferred, s.verb is Verb.BURY)
            record.add_attempt(Attempt(record.started_ms, now_ms, s.claim.slot, *facts))
            record.error = s.error
        record.raw, record.slot, record.queue, record.deferred = s.next_raw, s.claim.slot, s.claim.queue, s.reason
        _move(store, s, record, now_ms)
        if s.order:
            store.orders[s.claim.id] = Order(s.claim.id, s.claim.slot, now_ms, s.order)
    _count(store, s, now_ms)
    store.publish(now_ms, wire_events.settled(s))
    add_follow_ups(store, record, s.follow_ups, now_ms)
    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:
        count_member(store, record.batch, record.id, ending, s.error, now_ms)
    if s.verb in (Verb.COMPLETE, Verb.CANCEL):
        store.trim_ended(State.COMPLETED if s.verb is Verb.COMPLETE else State.CANCELLED)


def _bury_foreign(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    """A job of fileq's own has come in under the id of this one while it ran, and has the record now."""
    store.bury_foreign(s.claim.slot, s.claim.queue, s.claim.raw, now_ms)
    if s.order:
        store.orders[s.claim.id] = Order(s.claim.id, s.claim.slot, now_ms, s.order)
    store.publish(now_ms, wire_events.settled(s))
    add_follow_ups(store, None, s.follow_ups, now_ms)


def _move(store: MemoryStore, s: Settlement, record: MemoryRecord, now_ms: int) -> None:
    if s.verb is Verb.COMPLETE:
        record.result, record.outputs = s.result, s.outputs or record.outputs
        for output in s.outputs:
            store.made[output.path] = (record.id, now_ms + int(store.config.worker.history_ttl * 1000))
        store.end(record, State.COMPLETED, now_ms)
        store.count(now_ms, "superseded", int(s.superseded))
        if s.leaves is not None:
            store.learn(s.leaves, record.id)
    elif s.verb is Verb.RETRY:
        store.schedule(record, State.RETRYING, now_ms + s.delay_ms, now_ms)
    elif s.verb is Verb.DEFER:
        record.deferred_count += 1
        record.deferrals_ms = deferred_again(record.deferrals_ms, record.deferred_count, now_ms)
        store.schedule(record, State.RETRYING, now_ms + s.delay_ms, now_ms)
    elif s.verb is Verb.BURY:
        record.state, record.ended_ms, record.fingerprint = State.DEAD, now_ms, s.fingerprint
        store.dead.appendleft(s.next_raw)
        store.count(now_ms, "dead")
    elif s.verb is Verb.RELEASE:
        store.push(record, front=True)
    else:
        store.end(record, State.CANCELLED, now_ms)


def _count(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    if s.died:
        store.count(now_ms, "recovered")
    elif s.verb is Verb.RELEASE:
        store.count(now_ms, "released")
    elif s.is_failure:
        store.count(now_ms, "failed")
        store.count(now_ms, "retried", int(s.verb is Verb.RETRY))
    if s.kind:
        store.count(now_ms, f"error:{s.kind}")
