"""`fsck --repair` on Redis. Every repair is one script that checks again before it changes anything.

Changes only what the script itself found damaged. A kill -9 leaves the damage or the repair, never half of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.redis.list_search import FAR, FEW, Hints, SearchedJob, look_for_all, run_batches, run_searching
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import UnrecordedJob

# The record as the proof that its job is not in a list; FIELDS in lua/restore.lua.
_PROOF_FIELDS = ("state", "json", "queue", "worker", "due", "queued", "started", "attempts", "restored")


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
        """Few jobs are searched by the script. For many, or if the script did not search a long list to its end, the
        list is read first, and the script gets the position of each job or the proof of its absence."""
        head = (mode, *self._store.keys.split_patterns()[:2])
        answers: list[int] = [FAR[0]] * len(ids)
        if len(ids) <= FEW:
            jobs = [SearchedJob((self._store.keys.record(id),), (b"",), "", b"") for id in ids]
            answers = run_batches(self._store, "restore", jobs, head)
        far = [i for i, answer in enumerate(answers) if answer in FAR]
        if far:
            jobs, hints = self._with_proofs([ids[i] for i in far])
            for i, answer in zip(far, run_searching(self._store, "restore", jobs, head, hints), strict=True):
                answers[i] = answer
        return [bool(n) for n in answers]

    def _with_proofs(self, ids: Sequence[str]) -> tuple[list[SearchedJob], Hints]:
        store = self._store
        found = store.calls_in_batches([("HMGET", store.keys.record(id), *_PROOF_FIELDS) for id in ids])
        lists = [self._list_in(values) for values in found]
        wanted = [(key, values[1]) for key, values in zip(lists, found, strict=True) if key]
        positions, absent = look_for_all(store, wanted)
        jobs = []
        for id, key, values in zip(ids, lists, found, strict=True):
            raw = values[1] or b""
            proof = b"\0".join(value or b"" for value in values) if (key, raw) in absent else b""
            jobs.append(SearchedJob((store.keys.record(id),), (proof,), key, raw))
        return jobs, positions

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
        return self._run_create_record("look", jobs)

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        return self._run_create_record("repair", jobs)

    def _run_create_record(self, mode: str, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        store = self._store
        searched = [self._as_searched(job) for job in jobs]
        wanted = [(job.list, job.raw) for job in searched if job.list]
        hints = look_for_all(store, wanted)[0] if len(wanted) > FEW else {}
        return [bool(n) for n in run_searching(store, "create_record", searched, (mode,), hints)]

    def _as_searched(self, job: UnrecordedJob) -> SearchedJob:
        key = self._key_of(job)
        is_long = job.place not in ("scheduled", "processing")
        keys = (self._store.keys.record(job.record.id), key)
        return SearchedJob(keys, self._job_args(job), key if is_long else "", job.record.raw)

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
