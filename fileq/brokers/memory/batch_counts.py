"""How the memory broker counts the members of a batch: each step also enqueues callbacks and counts in the parents.

The rules are in core/batch.py. A member is counted if its id is among the members that are not counted yet, so a job
that ends a second time changes nothing. The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from fileq.brokers import wire_events
from fileq.brokers.batches import follow_up_of
from fileq.brokers.memory.entries import add, existing_job
from fileq.brokers.memory.store import KeptBatch, MemoryStore
from fileq.brokers.types import entry_of
from fileq.core import batch as rules
from fileq.core.batch import BatchState, Callback, Ending


def count_member(store: MemoryStore, batch_id: str, id: str, ending: Ending, error: str, now_ms: int) -> bool:
    """Counts a member that has ended, and finishes the batch if it was the last. False if it is counted already."""
    batch = store.batches.get(batch_id)
    if batch is None or id not in batch.members:
        return False
    batch.members.remove(id)
    if ending is Ending.DEAD and id in batch.dead:
        ending = Ending.DELETED  # it was enqueued again after its record was lost, and is counted as dead already
    if ending is Ending.DEAD:
        batch.dead.add(id)
    _fire(store, batch, rules.count_ending(batch.facts, ending, id, error), now_ms)
    finish_if_done(store, batch, now_ms)
    return True


def finish_if_done(store: MemoryStore, batch: KeptBatch, now_ms: int) -> None:
    """Finishes a batch that is done: its callbacks first, then the same for its parent, of which it is a member."""
    was, facts = batch.facts.state, batch.facts
    due = rules.finish(facts, now_ms)
    if facts.state is was:
        return
    _fire(store, batch, due, now_ms)
    store.finished_batches.append(facts.id)
    store.publish(now_ms, wire_events.batch_finished(facts))
    parent = store.batches.get(facts.parent)
    if parent is not None and not facts.is_counted:
        _fire(store, parent, rules.count_child(parent.facts, facts), now_ms)
        finish_if_done(store, parent, now_ms)


def revive_member(store: MemoryStore, batch_id: str, id: str) -> None:
    """A dead member waits again."""
    batch = store.batches.get(batch_id)
    if batch is None or id not in batch.dead:
        return
    batch.dead.remove(id)
    if id in batch.members:
        rules.delete_dead(batch.facts)  # it was enqueued again after its record was lost, and is counted as that job
        return
    batch.members.add(id)
    parent = store.batches.get(batch.facts.parent)
    rules.revive(batch.facts, parent.facts if parent is not None else None)


def delete_member(store: MemoryStore, batch_id: str, id: str) -> None:
    """A dead member is deleted."""
    batch = store.batches.get(batch_id)
    if batch is not None and id in batch.dead:
        batch.dead.remove(id)
        rules.delete_dead(batch.facts)


def _fire(store: MemoryStore, batch: KeptBatch, callbacks: Iterable[Callback], now_ms: int) -> None:
    """Enqueues callbacks of this batch as members of its parent, unless that has finished."""
    parent = store.batches.get(batch.facts.parent)
    if parent is not None and parent.facts.state is BatchState.FINISHED:
        parent = None
    for callback in callbacks:
        entry = entry_of(follow_up_of(callback))
        if not existing_job(store, entry):
            add(store, entry, now_ms, batch=parent)
