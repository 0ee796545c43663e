"""`fsck --repair` on Redis. Every repair is one script that checks again before it changes anything.

Changes only what the script itself found damaged. A kill -9 leaves the damage or the repair, never half of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.redis.list_search import SearchedJob, SearchScript, run_on_records, run_searching
from fileq.brokers.redis.scripts import LOOK_FOR_LOST, LOOK_FOR_UNRECORDED
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
        return self._run_restore(LOOK_FOR_LOST, "look", ids)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        return self._run_restore("restore", "repair", ids)

    def _run_restore(self, name: str, mode: str, ids: Sequence[str]) -> list[bool]:
        store = self._store
        script = SearchScript(name, (mode, *store.keys.split_patterns()[:2]), takes_proofs=True)
        answers = run_on_records(store, script, ids, lambda i: ((store.keys.record(ids[i]),), ()), is_dead_too=True)
        return [bool(n) for n in answers]

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        return self._run_create_record(LOOK_FOR_UNRECORDED, "look", jobs)

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        return self._run_create_record("create_record", "repair", jobs)

    def _run_create_record(self, name: str, mode: str, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        searched = [self._as_searched(job) for job in jobs]
        script = SearchScript(name, (mode,))
        answers = run_searching(self._store, script, len(jobs), lambda numbers: [searched[i] for i in numbers])
        return [bool(n) for n in answers]

    def _as_searched(self, job: UnrecordedJob) -> SearchedJob:
        keys, record = self._store.keys, job.record
        others = {"processing": keys.processing(record.slot), "scheduled": keys.scheduled}
        kind = job.place if job.place in others else "list"
        key = others.get(job.place) or keys.list_of(job.place) or keys.scheduled
        names = (record.state.value, record.queue, record.slot)
        times = (record.created_ms, record.started_ms, record.ended_ms)
        error = record.error.encode(errors="backslashreplace")
        number = keys.queue_numbers.get(job.place, 0)
        args = (record.raw, kind, number, *names, *times, error, record.unique_key)
        return SearchedJob((keys.record(record.id), key), args, key if kind == "list" else "", record.raw)

    def balance(self, drift: int, becomes: int = 0) -> bool:
        store = self._store
        lists = [store.keys.processing(slot) for slot in store.unregistered_slots()]
        return bool(store.run("balance", lists, (*store.keys.split_patterns()[:2], drift, becomes)))
