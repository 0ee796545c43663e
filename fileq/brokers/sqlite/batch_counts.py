"""How the SQLite broker counts the members of a batch, in the caller's transaction: callbacks and parents included.

The rules are in core/batch.py. A member is counted if it is marked as unfinished, so a job that ends a second time
changes nothing. Follows the memory broker's module line by line.
"""

from __future__ import annotations

from collections.abc import Iterable

from fileq.brokers import wire_events
from fileq.brokers.batches import follow_up_of
from fileq.brokers.sqlite.batch_members import MemberState
from fileq.brokers.sqlite.entries import add, existing_job
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.brokers.types import entry_of
from fileq.core import batch as rules
from fileq.core.batch import Batch, BatchState, Callback, Ending


def count_member(work: UnitOfWork, batch_id: str, id: str, ending: Ending, error: str) -> bool:
    """Counts a member that has ended, and finishes the batch if it was the last. False if it is counted already."""
    batch = work.batches.find(batch_id)
    if batch is None or not work.members.take(batch, id, MemberState.UNFINISHED):
        return False
    if ending is Ending.DEAD and not work.members.put(batch, id, MemberState.DEAD):
        ending = Ending.DELETED  # it was enqueued again after its record was lost, and is counted as dead already
    _fire(work, batch, rules.count_ending(work.batches.change(batch), ending, id, error))
    finish_if_done(work, batch)
    return True


def finish_if_done(work: UnitOfWork, batch: Batch) -> None:
    """Finishes a batch that is done: its callbacks first, then the same for its parent, of which it is a member."""
    was = batch.state
    due = rules.finish(batch, work.now_ms)
    if batch.state is was:
        return
    _fire(work, work.batches.change(batch), due)
    work.finished_batches.append(batch.id)
    work.publish(wire_events.batch_finished(batch) if work.has_subscribers else b"")
    parent = work.batches.find(batch.parent)
    if parent is not None and not batch.is_counted:
        _fire(work, parent, rules.count_child(work.batches.change(parent), batch))
        finish_if_done(work, parent)


def revive_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member waits again."""
    batch = work.batches.find(batch_id)
    if batch is None or not work.members.take(batch, id, MemberState.DEAD):
        return
    if not work.members.put(batch, id, MemberState.UNFINISHED):
        # It was enqueued again after its record was lost, and is counted as that job.
        rules.delete_dead(work.batches.change(batch))
        return
    parent = work.batches.find(batch.parent)
    rules.revive(work.batches.change(batch), work.batches.change(parent) if parent is not None else None)


def delete_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member is deleted."""
    batch = work.batches.find(batch_id)
    if batch is not None and work.members.take(batch, id, MemberState.DEAD):
        rules.delete_dead(work.batches.change(batch))


def _fire(work: UnitOfWork, batch: Batch, callbacks: Iterable[Callback]) -> None:
    """Enqueues callbacks of this batch as members of its parent, unless that has finished."""
    parent = work.batches.find(batch.parent)
    if parent is not None and parent.state is BatchState.FINISHED:
        parent = None
    for callback in callbacks:
        entry = entry_of(follow_up_of(callback))
        if not existing_job(work, entry):
            add(work, entry, batch=parent)
