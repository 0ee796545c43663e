"""How a claim ends: job, record, slot and counters move together, or, if the slot lost it, not at all."""

from __future__ import annotations

from fileq.brokers import events
from fileq.brokers.sqlite.books import Books
from fileq.brokers.sqlite.rows import Row, Slot
from fileq.brokers.types import Attempt
from fileq.core.job import State
from fileq.core.settlement import Settlement, SettleResult, Verb


def settle(books: Books, s: Settlement) -> SettleResult:
    """For a slot that lives. The fence is what it holds; `settled` tells a repeat from a loss."""
    slot = books.slot(s.claim.slot)
    if slot is not None and slot.settled == s.claim.token:
        return SettleResult.DONE_ALREADY
    # Also a call that comes late, about bytes which the slot has settled and then claimed again.
    if slot is None or s.claim.token < (slot.settled or 0) or slot.held != s.claim.raw:
        books.count("fenced")
        return SettleResult.FENCED
    _move(books, s, slot)
    slot.settled = s.claim.token
    books.beat(slot)
    return SettleResult.DONE


def reap(books: Books, slot: Slot, s: Settlement) -> SettleResult:
    """For a slot that died: the first reaper moves its job, the others are told."""
    if slot.held != s.claim.raw:
        return SettleResult.FENCED
    _move(books, s, slot)
    return SettleResult.DONE


def _move(books: Books, s: Settlement, slot: Slot) -> None:
    if s.claim.record_id is None and s.verb is Verb.RELEASE:
        books.disown(s.claim.queue, s.raw, front=True)
    else:
        row = books.row_for(s.claim.id, s.claim.queue, s.raw)
        row.add_attempt(Attempt(row.started_ms, books.now_ms, s.claim.slot, s.outcome, s.error))
        row.raw, row.error, row.worker, row.queue = s.raw, s.error, s.claim.slot, s.claim.queue
        _move_row(books, s, row)
    books.change_slot(slot).held = None
    _count_blame(books, s)
    books.publish(events.settled(s) if books.is_heard else b"")


def _move_row(books: Books, s: Settlement, row: Row) -> None:
    if s.verb is Verb.COMPLETE:
        row.result = s.result
        books.end(row, State.COMPLETED)
        books.count("superseded", int(s.superseded))
        if s.leaves is not None:
            books.learn(s.leaves, row.id)
    elif s.verb is Verb.RETRY:
        books.schedule(row, State.RETRYING, books.now_ms + s.delay_ms)
    elif s.verb is Verb.BURY:
        books.bury(row)
    elif s.verb is Verb.RELEASE:
        books.push(row, front=True)
    else:
        books.end(row, State.CANCELLED)


def _count_blame(books: Books, s: Settlement) -> None:
    if s.died:
        books.count("recovered")
    elif s.verb is Verb.RELEASE:
        books.count("released")
    elif s.is_failure:
        books.count("failed")
        books.count("retried", int(s.verb is Verb.RETRY))
    if s.kind:
        books.count(f"error:{s.kind}")
