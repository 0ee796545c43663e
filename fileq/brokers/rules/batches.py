"""Batches: batches.Batches over a unit of work, and how members are counted.

The rules are in core/batch.py. A member is counted if it is marked as unfinished, so a job that ends a second time
changes nothing. Each step also enqueues the callbacks that are due, and counts in the parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fileq.brokers import wire_events
from fileq.brokers.batches import (
    CHILDREN_CANCELLED,
    MEMBERS_PAGE,
    BatchPage,
    JoinResult,
    MemberPage,
    NewBatch,
    check_new_batch,
    follow_up_of,
    parent_refused,
    too_deep,
)
from fileq.brokers.rules.entries import add, existing_job, join_batch
from fileq.brokers.rules.rows import MemberState, RecordRow
from fileq.brokers.rules.unit_of_work import CANCELS, Store, UnitOfWork
from fileq.brokers.types import entry_of
from fileq.core import batch as rules
from fileq.core.batch import (
    ENDINGS_OF_STATES,
    LEVELS_MAX,
    Batch,
    BatchState,
    Callback,
    Ending,
    runs_though_cancelled,
)
from fileq.core.job import State, decode_or_none


class BatchVerbs:
    store: Store

    def create_batch(self, new: NewBatch) -> bool:
        check_new_batch(new, self.store.queue_names)
        with self.store.unit_of_work() as work:
            if work.batches.get(new.id) is not None:
                return False
            if new.parent:
                parent = work.batches.get(new.parent)
                if parent is None or not parent.is_takeable:
                    raise parent_refused(new.id, parent, new.parent)
                if _levels(work, parent) >= LEVELS_MAX:
                    raise too_deep(new.id)
                rules.add_member(work.change_batch(parent), work.now_ms)
            batch = Batch(new.id, new.name, new.parent, new.allow_failures, new.callbacks, new.info)
            batch.created_ms = batch.touched_ms = work.now_ms
            work.insert_batch(batch)
            work.batches.put(batch.id, batch)
            return True

    def seal_batch(self, id: str) -> bool:
        with self.store.unit_of_work() as work:
            batch = work.batches.get(id)
            if batch is None or batch.state is not BatchState.OPEN:
                return False
            rules.seal(work.change_batch(batch), work.now_ms)
            finish_if_done(work, batch)
            return True

    def cancel_batch(self, id: str, *, untouched_since_ms: int | None = None) -> bool:
        with self.store.unit_of_work() as work:
            batch = work.batches.get(id)
            if batch is None or not rules.is_cancellable(batch, untouched_since_ms):
                return False
            _cancel(work, batch)
            work.next_revision(CANCELS)
            level, left = [batch], CHILDREN_CANCELLED
            for _ in range(LEVELS_MAX):
                below = list[Batch]()
                for parent in level:
                    children = work.unfinished_children(parent.id, left) if left else []
                    found = list(filter(None, map(work.batches.get, children)))
                    left -= len(found)
                    below += filter(rules.is_cancellable, found)
                level = below
                for child in level:
                    _cancel(work, child)
            return True

    def join_batch(self, id: str, job_ids: Sequence[str]) -> list[JoinResult]:
        with self.store.unit_of_work() as work:
            batch = work.batches.get(id)
            if batch is None:
                return [JoinResult.CLOSED for _ in job_ids]
            work.records.read(job_ids)
            return [_join(work, batch, job_id) for job_id in job_ids]

    def batches_by_id(self, ids: Sequence[str]) -> list[Batch | None]:
        with self.store.reading() as work:
            return _with_running(work, ids)

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        created_ms, _, id = cursor.partition(".")
        with self.store.reading() as work:
            found = work.batches_before((int(created_ms), id) if cursor else None, limit + 1, unfinished=unfinished)
            batches = _with_running(work, [id for _, id in found[:limit]])
            next_cursor = "{}.{}".format(*found[limit - 1]) if len(found) > limit else ""
            return BatchPage(tuple(filter(None, batches)), next_cursor)

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.UNFINISHED, cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.DEAD, cursor, limit)

    def _members(self, id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        with self.store.reading() as work:
            is_there = work.batches.get(id) is not None
            return work.member_page(id, state, cursor, limit) if is_there else MemberPage(())

    def count_members(self, id: str, job_ids: Sequence[str]) -> int:
        with self.store.unit_of_work() as work:
            work.records.read(job_ids)
            counted = 0
            for job_id in job_ids:
                record = work.records.get(job_id)
                ending = ENDINGS_OF_STATES.get(State(record.state)) if record is not None else Ending.DELETED
                error = record.error if record is not None else ""
                counted += ending is not None and count_member(work, id, job_id, ending, error)
            return counted


def _levels(work: UnitOfWork, batch: Batch | None) -> int:
    return 1 + _levels(work, work.batches.get(batch.parent)) if batch is not None else 0


def _cancel(work: UnitOfWork, batch: Batch) -> None:
    rules.cancel(work.change_batch(batch), work.now_ms)
    finish_if_done(work, batch)


def _join(work: UnitOfWork, batch: Batch, id: str) -> JoinResult:
    record = work.records.get(id)
    other = record.batch if record is not None else ""
    if other == batch.id or work.members.has(batch, id, *MemberState):
        return JoinResult.MEMBER
    if not batch.is_takeable:
        return JoinResult.CLOSED
    ending = ENDINGS_OF_STATES.get(State(record.state)) if record is not None else Ending.COMPLETED
    if other and ending in (None, Ending.DEAD):
        return JoinResult.ELSEWHERE
    if record is not None and not other:
        work.change_record(record).batch = batch.id
    join_batch(work, batch, id)
    if ending is not None:
        if ending is not Ending.DEAD:
            work.members.put(batch, id, MemberState.KNOWN)
        count_member(work, batch.id, id, ending, record.error if record is not None else "")
    return JoinResult.JOINED


def _with_running(work: UnitOfWork, ids: Sequence[str]) -> list[Batch | None]:
    """These batches, with the number of their members that run."""
    batches = [work.batches.get(id) for id in ids]
    jobs = (decode_or_none(slot_row.raw) for slot_row in work.all_slots() if slot_row.raw is not None)
    held = {job.id for job in jobs if job is not None}
    work.records.read(held)
    for batch in filter(None, batches):
        # A record that names another batch, or none, is of another job, enqueued again after its record was lost.
        batch.running = sum(
            work.members.has(batch, id, MemberState.UNFINISHED)
            for id in held
            if (record := work.records.get(id)) is None or record.batch == batch.id
        )
    return batches


def is_batch_cancelled(work: UnitOfWork, record: RecordRow | None) -> bool:
    """Whether the job must not run because it is a member of a batch that is cancelled."""
    batch = work.batches.get(record.batch) if record is not None and not runs_though_cancelled(record.id) else None
    return batch is not None and batch.is_cancelled


def count_member(work: UnitOfWork, batch_id: str, id: str, ending: Ending, error: str) -> bool:
    """Counts a member that has ended, and finishes the batch if it was the last. False if it was counted before."""
    batch = work.batches.get(batch_id)
    if batch is None or not work.members.take(batch, id, MemberState.UNFINISHED):
        return False
    if ending is Ending.DEAD and not work.members.put(batch, id, MemberState.DEAD):
        ending = Ending.DELETED  # it was enqueued again after its record was lost, and is counted as dead already
    _fire(work, batch, rules.count_ending(work.change_batch(batch), ending, id, error))
    finish_if_done(work, batch)
    return True


def finish_if_done(work: UnitOfWork, batch: Batch) -> None:
    """Finishes a batch that is done: its callbacks first, then the same for its parent, of which it is a member."""
    was = batch.state
    due = rules.finish(batch, work.now_ms)
    if batch.state is was:
        return
    _fire(work, work.change_batch(batch), due)
    work.finished_batches.append(batch.id)
    work.publish(wire_events.batch_finished(batch) if work.has_subscribers else b"")
    parent = work.batches.get(batch.parent)
    if parent is not None and not batch.is_counted:
        _fire(work, parent, rules.count_child(work.change_batch(parent), batch))
        finish_if_done(work, parent)


def revive_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member waits again, so its batch is no longer cancelled."""
    batch = work.batches.get(batch_id)
    if batch is None:
        return
    _lift_cancellation(work, batch)
    if not work.members.take(batch, id, MemberState.DEAD):
        return
    if not work.members.put(batch, id, MemberState.UNFINISHED):
        # It was enqueued again after its record was lost, and is counted as that job.
        rules.delete_dead(work.change_batch(batch))
        return
    parent = work.batches.get(batch.parent)
    rules.revive(work.change_batch(batch), work.change_batch(parent) if parent is not None else None)


def _lift_cancellation(work: UnitOfWork, batch: Batch | None) -> None:
    """Of this batch and those around it, also finished ones: a child of a cancelled batch would be cancelled again."""
    while batch is not None:
        if batch.is_cancelled:
            work.change_batch(batch).is_cancelled = False
        batch = work.batches.get(batch.parent)


def delete_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member is deleted."""
    batch = work.batches.get(batch_id)
    if batch is not None and work.members.take(batch, id, MemberState.DEAD):
        rules.delete_dead(work.change_batch(batch))


def _fire(work: UnitOfWork, batch: Batch, callbacks: Iterable[Callback]) -> None:
    """Enqueues callbacks of this batch as members of its parent, unless that has finished."""
    parent = work.batches.get(batch.parent)
    if parent is not None and parent.state is BatchState.FINISHED:
        parent = None
    for callback in callbacks:
        entry = entry_of(follow_up_of(callback))
        if not existing_job(work, entry):
            add(work, entry, batch=parent)
