"""The SQLite broker's batches: batches.Batches over a SqliteStore. Every call that changes one is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from fileq.brokers.batches import (
    CHILDREN_CANCELLED,
    MEMBERS_PAGE,
    BatchPage,
    BatchView,
    JoinResult,
    MemberPage,
    NewBatch,
    check_new_batch,
    parent_refused,
    too_deep,
    view_of,
)
from fileq.brokers.sqlite.rows import RecordRow, all_slots
from fileq.brokers.sqlite.settlements import count_cancel_request, count_member, finish_if_done
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import (
    MemberState,
    UnitOfWork,
    find_batch,
    join_batch,
    member_page,
    unfinished_among,
)
from fileq.core import batch as rules
from fileq.core.batch import ENDINGS_OF_STATES, KEPT_MS, LEVELS_MAX, Batch, BatchState, Ending
from fileq.core.job import State, decode_or_none


class SqliteBatches:
    _store: SqliteStore

    def create_batch(self, new: NewBatch) -> bool:
        check_new_batch(new, self._store.queue_names)
        with self._store.unit_of_work() as work:
            if work.batches.find(new.id) is not None:
                return False
            if new.parent:
                parent = work.batches.find(new.parent)
                if parent is None or not parent.is_takeable:
                    raise parent_refused(new.id, parent, new.parent)
                if _levels(work, parent) >= LEVELS_MAX:
                    raise too_deep(new.id)
                rules.add_member(work.batches.change(parent), work.now_ms)
            batch = Batch(new.id, new.name, new.parent, new.allow_failures, new.callbacks, new.info)
            batch.created_ms = batch.touched_ms = work.now_ms
            work.batches.create(batch)
            return True

    def seal_batch(self, id: str) -> bool:
        with self._store.unit_of_work() as work:
            batch = work.batches.find(id)
            if batch is None or batch.state is not BatchState.OPEN:
                return False
            rules.seal(work.batches.change(batch), work.now_ms)
            finish_if_done(work, batch)
            return True

    def cancel_batch(self, id: str, *, untouched_since_ms: int | None = None) -> bool:
        with self._store.unit_of_work() as work:
            batch = work.batches.find(id)
            if batch is None or not rules.is_cancellable(batch, untouched_since_ms):
                return False
            _cancel(work, batch)
            count_cancel_request(work)
            level, left = [batch], CHILDREN_CANCELLED
            for _ in range(LEVELS_MAX):
                found = [child for parent in level for child in work.batches.children(parent.id)]
                level = [child for child in found if rules.is_cancellable(child)][:left]
                left -= len(level)
                for child in level:
                    _cancel(work, child)
            return True

    def uncancel_batch(self, id: str) -> bool:
        with self._store.unit_of_work() as work:
            batch = work.batches.find(id)
            if batch is None or not batch.is_cancelled:
                return False
            work.batches.change(batch).is_cancelled = False
            return True

    def join_batch(self, id: str, job_ids: Sequence[str]) -> list[JoinResult]:
        with self._store.unit_of_work() as work:
            batch = work.batches.find(id)
            if batch is None:
                return [JoinResult.CLOSED for _ in job_ids]
            work.read_records(job_ids)
            return [_join(work, batch, job_id) for job_id in job_ids]

    def batches_by_id(self, ids: Sequence[str]) -> list[BatchView | None]:
        with self._store.snapshot() as (db, now_ms):
            held = _held_ids(db)
            found = [find_batch(db, id, now_ms) for id in ids]
            return [_view(db, batch, held) if batch is not None else None for batch in found]

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        with self._store.snapshot() as (db, now_ms):
            kept = "finished_ms = 0" if unfinished else "(finished_ms = 0 OR finished_ms > ?)"
            values: tuple[object, ...] = () if unfinished else (now_ms - KEPT_MS,)
            if cursor:
                created_ms, _, id = cursor.partition(".")
                kept, values = f"{kept} AND (created_ms, id) < (?, ?)", (*values, int(created_ms), id)
            sql = f"SELECT created_ms, id FROM batches WHERE {kept} ORDER BY created_ms DESC, id DESC LIMIT ?"
            rows = db.execute(sql, (*values, limit + 1)).fetchall()
            held = _held_ids(db)
            found = [find_batch(db, id, now_ms) for _, id in rows[:limit]]
            views = tuple(_view(db, batch, held) for batch in found if batch is not None)
            return BatchPage(views, "{}.{}".format(*rows[limit - 1]) if len(rows) > limit else "")

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.UNFINISHED, cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.DEAD, cursor, limit)

    def _members(self, id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        with self._store.snapshot() as (db, now_ms):
            is_there = find_batch(db, id, now_ms) is not None
            return member_page(db, id, state, cursor, limit) if is_there else MemberPage(())

    def count_members(self, id: str, job_ids: Sequence[str]) -> int:
        with self._store.unit_of_work() as work:
            work.read_records(job_ids)
            return sum(_count(work, id, job_id) for job_id in job_ids)


def _levels(work: UnitOfWork, batch: Batch | None) -> int:
    return 1 + _levels(work, work.batches.find(batch.parent)) if batch is not None else 0


def _cancel(work: UnitOfWork, batch: Batch) -> None:
    rules.cancel(work.batches.change(batch), work.now_ms)
    finish_if_done(work, batch)


def _join(work: UnitOfWork, batch: Batch, id: str) -> JoinResult:
    record = work.record(id)
    other = record.batch if record is not None else ""
    if other == batch.id or work.members.has(batch, id, *MemberState):
        return JoinResult.MEMBER
    if not batch.is_takeable:
        return JoinResult.CLOSED
    ending = _ending_of(record) if record is not None else Ending.COMPLETED
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


def _count(work: UnitOfWork, batch_id: str, id: str) -> bool:
    record = work.record(id)
    ending = _ending_of(record) if record is not None else Ending.DELETED
    error = record.error if record is not None else ""
    return ending is not None and count_member(work, batch_id, id, ending, error)


def _ending_of(record: RecordRow) -> Ending | None:
    """How a job ended; None if it has not."""
    return ENDINGS_OF_STATES.get(State(record.state))


def _held_ids(db: sqlite3.Connection) -> set[str]:
    """The ids of the jobs that slots hold."""
    jobs = (decode_or_none(slot_row.raw) for slot_row in all_slots(db) if slot_row.raw is not None)
    return {job.id for job in jobs if job is not None}


def _view(db: sqlite3.Connection, batch: Batch, held: set[str]) -> BatchView:
    return view_of(batch, unfinished_among(db, batch.id, held))
