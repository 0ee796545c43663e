"""`fsck --repair` on Redis. Every repair is one script that checks again before it changes anything.

Changes only what the script itself found damaged. A kill -9 leaves the damage or the repair, never half of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import UnrecordedJob


class RedisRepairer:
    """protocol.Repairer on Redis."""

    _store: RedisStore

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        prefix = self._store.keys.records
        for keys in self._store.scan(prefix, kind="hash"):
            found = [key.decode(errors="replace")[len(prefix) :] for key in keys]
            for start in range(0, len(found), size):
                yield found[start : start + size]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        return self._run_restore("look", ids)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        return self._run_restore("repair", ids)

    def _run_restore(self, mode: str, ids: Sequence[str]) -> list[bool]:
        if not ids:
            return []
        store = self._store
        keys = [store.keys.record(id) for id in ids]
        return [bool(n) for n in store.run("restore", keys, (mode, *store.keys.split_patterns()[:2]))]

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        return self._run_create_record("look", jobs)

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        return self._run_create_record("repair", jobs)

    def _run_create_record(self, mode: str, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        if not jobs:
            return []
        store = self._store
        keys = chain.from_iterable((store.keys.record(job.record.id), self._key_of(job)) for job in jobs)
        args = chain.from_iterable(self._job_args(job) for job in jobs)
        return [bool(n) for n in store.run("create_record", tuple(keys), (mode, *args))]

    def _key_of(self, job: UnrecordedJob) -> str:
        keys = self._store.keys
        if job.place == "processing":
            return keys.processing(job.record.slot)
        return keys.list_of(job.place) or keys.scheduled

    def _job_args(self, job: UnrecordedJob) -> tuple[Argument, ...]:
        record = job.record
        number = self._store.keys.queue_numbers.get(job.place, 0)
        times = (record.created_ms, record.started_ms, record.ended_ms)
        error = record.error.encode(errors="backslashreplace")
        return (record.raw, number, record.state.value, record.queue, record.slot, *times, error)

    def balance(self, drift: int, becomes: int = 0) -> bool:
        store = self._store
        lists = [store.keys.processing(slot) for slot in store.unregistered_slots()]
        return bool(store.run("balance", lists, (*store.keys.split_patterns()[:2], drift, becomes)))
