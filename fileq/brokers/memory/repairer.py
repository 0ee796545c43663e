"""The memory broker's repairs: protocol.Repairer over a MemoryStore. Every call is one step under the store's lock.

Changes only what is still wrong at the time of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fileq.brokers.memory.store import MemoryRecord, MemoryStore
from fileq.brokers.types import UnrecordedJob
from fileq.core.job import State


class MemoryRepairer:
    _store: MemoryStore

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        with self._store.lock:
            self._store.begin()
            found = list(self._store.records)
        for start in range(0, len(found), size):
            yield found[start : start + size]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        with self._store.lock:
            self._store.begin()
            records = [self._store.records.get(id) for id in ids]
            return [record is not None and self._is_lost(record) for record in records]

    def _is_lost(self, record: MemoryRecord) -> bool:
        """False for a queue that is not configured here: another configuration may hold the job there."""
        place = self._place_of(record)
        return place is not None and record.queue in self._store.queues and record.raw not in place

    def _place_of(self, record: MemoryRecord) -> Collection[bytes] | None:
        """The place where a job of this state must be; None for a job that has ended."""
        store = self._store
        return {
            State.PENDING: store.queues.get(record.queue, ()),
            State.SCHEDULED: store.scheduled,
            State.RETRYING: store.scheduled,
            State.RUNNING: store.processing.get(record.slot, ()),
            State.DEAD: store.dead,
        }.get(record.state)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        with self._store.lock:
            self._store.begin()
            return [self._restore(self._store.records.get(id)) for id in ids]

    def _restore(self, record: MemoryRecord | None) -> bool:
        if record is None or not self._is_lost(record):
            return False
        record.expires_ms = None
        if record.state is State.DEAD:
            self._store.dead.appendleft(record.raw)
        elif record.state in (State.SCHEDULED, State.RETRYING):
            self._store.scheduled[record.raw] = record.due_ms
        else:
            record.queued = max(record.queued, 1) if record.state is State.PENDING else record.queued + 1
            record.state = State.PENDING
            self._store.push_raw(record.queue, record.raw, front=True)
        return True

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self._store.lock:
            self._store.begin()
            return [self._is_unrecorded(job) for job in jobs]

    def _is_unrecorded(self, job: UnrecordedJob) -> bool:
        store = self._store
        places: dict[str, Collection[bytes]] = {
            **store.queues,
            "scheduled": store.scheduled,
            "dead_letter": store.dead,
            "processing": store.processing.get(job.record.slot, ()),
        }
        return job.record.id not in store.records and job.record.raw in places[job.place]

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self._store.lock:
            self._store.begin()
            return [self._create_record(job) for job in jobs]

    def _create_record(self, job: UnrecordedJob) -> bool:
        if not self._is_unrecorded(job):
            return False
        store = self._store
        fields = {name: getattr(job.record, name) for name in MemoryRecord.__struct_fields__ if name != "expires_ms"}
        record = MemoryRecord(**{**fields, "attempts": list(job.record.attempts)})
        record.queued = int(job.place in store.queues)
        record.due_ms = store.scheduled[record.raw] if job.place == "scheduled" else 0
        store.records[record.id] = record
        return True

    def balance(self, drift: int, becomes: int = 0) -> bool:
        with self._store.lock:
            if self._store.census(self._store.begin()).drift != drift:
                return False
            # The hourly counters stay: the jobs were not deleted or adopted in this hour.
            self._store.counters["deleted"] += max(0, drift - becomes)
            self._store.counters["adopted"] += max(0, becomes - drift)
            return True
