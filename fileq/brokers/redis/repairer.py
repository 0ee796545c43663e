"""`fsck --repair` on Redis. Every repair is one script that checks again before it changes anything.

Changes only what the script itself found damaged. A kill -9 leaves the damage or the repair, never half of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.redis.list_search import PROOF_FIELDS, SearchedJob, SearchScript, proof_of, run_searching
from fileq.brokers.redis.scripts import LOOK_FOR_LOST, LOOK_FOR_UNRECORDED, Argument
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

        def describe(numbers: Sequence[int]) -> list[SearchedJob]:
            records = [store.keys.record(ids[i]) for i in numbers]
            found = store.calls_in_batches([("HMGET", record, *PROOF_FIELDS) for record in records])
            return [
                SearchedJob((record,), (), self._list_in(values), values[1] or b"", proof_of(values))
                for record, values in zip(records, found, strict=True)
            ]

        return [bool(n) for n in run_searching(store, script, len(ids), describe)]

    def _list_in(self, values: Sequence[bytes | None]) -> str:
        """The list that should hold the job of this record, if it waits or is dead."""
        keys = self._store.keys
        state, raw, queue = values[:3]
        if raw is None:
            return ""
        if state == b"dead":
            return keys.dead
        name = (queue or b"").decode(errors="replace")
        return keys.list_of(name) or "" if state == b"pending" and name in keys.queue_numbers else ""

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
        key = self._key_of(job)
        kind = job.place if job.place in ("scheduled", "processing") else "list"
        keys = (self._store.keys.record(job.record.id), key)
        return SearchedJob(keys, self._job_args(job, kind), key if kind == "list" else "", job.record.raw)

    def _key_of(self, job: UnrecordedJob) -> str:
        keys = self._store.keys
        if job.place == "processing":
            return keys.processing(job.record.slot)
        return keys.list_of(job.place) or keys.scheduled

    def _job_args(self, job: UnrecordedJob, kind: str) -> tuple[Argument, ...]:
        record = job.record
        number = self._store.keys.queue_numbers.get(job.place, 0)
        times = (record.created_ms, record.started_ms, record.ended_ms)
        error = record.error.encode(errors="backslashreplace")
        names = (record.state.value, record.queue, record.slot)
        return (record.raw, kind, number, *names, *times, error, record.unique_key)

    def balance(self, drift: int, becomes: int = 0) -> bool:
        store = self._store
        lists = [store.keys.processing(slot) for slot in store.unregistered_slots()]
        return bool(store.run("balance", lists, (*store.keys.split_patterns()[:2], drift, becomes)))
