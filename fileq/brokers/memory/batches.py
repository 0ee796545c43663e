"""The memory broker's batches: batches.Batches over a MemoryStore. Every call is one step under its lock."""

from __future__ import annotations

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
from fileq.brokers.memory.queues import count_member, finish_if_done
from fileq.brokers.memory.store import KeptBatch, MemoryRecord, MemoryStore
from fileq.core import batch as rules
from fileq.core.batch import ENDINGS_OF_STATES, LEVELS_MAX, Batch, BatchState, Ending
from fileq.core.job import State, decode_or_none


class MemoryBatches:
    _store: MemoryStore

    def create_batch(self, new: NewBatch) -> bool:
        store = self._store
        check_new_batch(new, store.queue_names)
        with store.lock:
            now_ms = store.begin()
            if new.id in store.batches:
                return False
            if new.parent:
                parent = store.batches.get(new.parent)
                if parent is None or not parent.facts.is_takeable:
                    raise parent_refused(new.id, parent.facts if parent is not None else None, new.parent)
                if self._levels(parent) >= LEVELS_MAX:
                    raise too_deep(new.id)
                rules.add_member(parent.facts, now_ms)
                parent.children.add(new.id)
            facts = Batch(new.id, new.name, new.parent, new.allow_failures, new.callbacks, new.info)
            facts.created_ms = facts.touched_ms = now_ms
            store.batches[new.id] = KeptBatch(facts)
            return True

    def _levels(self, batch: KeptBatch | None) -> int:
        return 1 + self._levels(self._store.batches.get(batch.facts.parent)) if batch is not None else 0

    def seal_batch(self, id: str) -> bool:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            batch = store.batches.get(id)
            if batch is None or batch.facts.state is not BatchState.OPEN:
                return False
            rules.seal(batch.facts, now_ms)
            finish_if_done(store, batch, now_ms)
            return True

    def cancel_batch(self, id: str, *, untouched_since_ms: int | None = None) -> bool:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            batch = store.batches.get(id)
            if batch is None or not rules.is_cancellable(batch.facts, untouched_since_ms):
                return False
            self._cancel(batch, now_ms)
            store.cancel_requests += 1
            level, left = [batch], CHILDREN_CANCELLED
            for _ in range(LEVELS_MAX):
                found = [store.batches.get(child) for parent in level for child in sorted(parent.children)]
                level = [child for child in found if child is not None and rules.is_cancellable(child.facts)][:left]
                left -= len(level)
                for child in level:
                    self._cancel(child, now_ms)
            return True

    def _cancel(self, batch: KeptBatch, now_ms: int) -> None:
        rules.cancel(batch.facts, now_ms)
        finish_if_done(self._store, batch, now_ms)

    def uncancel_batch(self, id: str) -> bool:
        with self._store.lock:
            self._store.begin()
            batch = self._store.batches.get(id)
            if batch is None or not batch.facts.is_cancelled:
                return False
            batch.facts.is_cancelled = False
            return True

    def join_batch(self, id: str, job_ids: Sequence[str]) -> list[JoinResult]:
        with self._store.lock:
            now_ms = self._store.begin()
            batch = self._store.batches.get(id)
            if batch is None:
                return [JoinResult.CLOSED for _ in job_ids]
            return [self._join(batch, job_id, now_ms) for job_id in job_ids]

    def _join(self, batch: KeptBatch, id: str, now_ms: int) -> JoinResult:
        record = self._store.records.get(id)
        other = record.batch if record is not None else ""
        if id in batch.members or id in batch.dead or id in batch.known or other == batch.facts.id:
            return JoinResult.MEMBER
        if not batch.facts.is_takeable:
            return JoinResult.CLOSED
        ending = _ending_of(record) if record is not None else Ending.COMPLETED
        if other and ending in (None, Ending.DEAD):
            return JoinResult.ELSEWHERE
        rules.add_member(batch.facts, now_ms)
        batch.members.add(id)
        if record is not None and not other:
            record.batch = batch.facts.id
        if ending is not None:
            if ending is not Ending.DEAD:
                batch.known.add(id)
            count_member(self._store, batch.facts.id, id, ending, record.error if record is not None else "", now_ms)
        return JoinResult.JOINED

    def batches_by_id(self, ids: Sequence[str]) -> list[BatchView | None]:
        with self._store.lock:
            self._store.begin()
            found = [self._store.batches.get(id) for id in ids]
            return [self._view(batch) if batch is not None else None for batch in found]

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        with self._store.lock:
            self._store.begin()
            found = sorted(self._store.batches.values(), key=_page_key, reverse=True)
            if unfinished:
                found = [batch for batch in found if batch.facts.state is not BatchState.FINISHED]
            if cursor:
                found = [batch for batch in found if _page_key(batch) < cursor]
            page = found[:limit]
            views = tuple(self._view(batch) for batch in page)
            return BatchPage(views, _page_key(page[-1]) if len(found) > limit else "")

    def _view(self, batch: KeptBatch) -> BatchView:
        held = (decode_or_none(raw) for raws in self._store.processing.values() for raw in raws)
        ids = {job.id for job in held if job is not None and job.id in batch.members}
        # If its record names another batch, or none, it is another job, enqueued after the record was lost.
        records = (self._store.records.get(id) for id in ids)
        return view_of(batch.facts, sum(record is None or record.batch == batch.facts.id for record in records))

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        with self._store.lock:
            self._store.begin()
            batch = self._store.batches.get(id)
            return _member_page(batch.members if batch is not None else set(), cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        with self._store.lock:
            self._store.begin()
            batch = self._store.batches.get(id)
            return _member_page(batch.dead if batch is not None else set(), cursor, limit)

    def count_members(self, id: str, job_ids: Sequence[str]) -> int:
        with self._store.lock:
            now_ms = self._store.begin()
            return sum(self._count(id, job_id, now_ms) for job_id in job_ids)

    def _count(self, batch_id: str, id: str, now_ms: int) -> bool:
        record = self._store.records.get(id)
        ending = _ending_of(record) if record is not None else Ending.DELETED
        error = record.error if record is not None else ""
        return ending is not None and count_member(self._store, batch_id, id, ending, error, now_ms)


def _ending_of(record: MemoryRecord) -> Ending | None:
    """How a job ended; None if it has not."""
    return ENDINGS_OF_STATES.get(State(record.state))


def _page_key(batch: KeptBatch) -> str:
    return f"{batch.facts.created_ms:020d}.{batch.facts.id}"


def _member_page(ids: set[str], cursor: str, limit: int) -> MemberPage:
    found = sorted(id for id in ids if id > cursor)
    return MemberPage(tuple(found[:limit]), found[limit - 1] if len(found) > limit else "")
