"""The SQLite broker's repairs: protocol.Repairer over a SqliteStore. Every repair is one transaction.

Changes only what is still wrong in that transaction. Follows the memory broker's repairer line by line.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from msgspec.json import encode

from fileq.brokers.sqlite.census import take_census
from fileq.brokers.sqlite.database_schema import rebuild_holes
from fileq.brokers.sqlite.rows import RareFacts, RecordRow, find_records
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork, find_newest
from fileq.brokers.types import Record, UnrecordedJob
from fileq.core.job import State


class SqliteRepairer:
    _store: SqliteStore

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        last = 0
        while True:
            with self._store.snapshot() as (db, now_ms):
                sql = "SELECT number, id, expires_ms FROM records WHERE number > ? ORDER BY number LIMIT ?"
                page = db.execute(sql, (last, size)).fetchall()
            if not page:
                return
            yield [id for _, id, expires_ms in page if expires_ms is None or expires_ms > now_ms]
            last = page[-1][0]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        with self._store.snapshot() as (db, now_ms):
            records = find_records(db, ids, now_ms)
            waiting = self._waiting(db, records.values())
            return [(record := records[id]) is not None and self._is_lost(db, record, waiting) for id in ids]

    def _waiting(self, db: sqlite3.Connection, records: Iterable[RecordRow | None]) -> set[tuple[str, bytes]]:
        """The (queue, raw) of these records that are in their queues."""
        pending = {(r.queue, r.raw) for r in records if r is not None and r.state == State.PENDING}
        return set(find_newest(db, pending))

    def _is_lost(self, db: sqlite3.Connection, record: RecordRow, waiting: set[tuple[str, bytes]]) -> bool:
        """False for a job that has ended, and for a queue that is not configured here."""
        place = {
            State.PENDING: record.queue,
            State.SCHEDULED: "scheduled",
            State.RETRYING: "scheduled",
            State.RUNNING: "processing",
            State.DEAD: "dead_letter",
        }.get(State(record.state))
        if place is None or record.queue not in self._store.queue_names:
            return False
        if place == record.queue:
            return (record.queue, record.raw) not in waiting
        return not _is_in(db, place, record)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        with self._store.unit_of_work() as work:
            records = [work.record(id) for id in ids]
            waiting = self._waiting(work.db, records)
            results = [self._restore(work, record, waiting) for record in records]
            if any(results):
                rebuild_holes(work.db)  # a job deleted by hand left a hole that is not listed
            return results

    def _restore(self, work: UnitOfWork, record: RecordRow | None, waiting: set[tuple[str, bytes]]) -> bool:
        if record is None or not self._is_lost(work.db, record, waiting):
            return False
        work.change_record(record).expires_ms = None
        if record.state == State.DEAD:
            work.db.execute("INSERT INTO dead (raw, crc) VALUES (?, ?)", (record.raw, crc32(record.raw)))
        elif record.state in (State.SCHEDULED, State.RETRYING):
            work.db.execute("INSERT INTO scheduled VALUES (?, ?)", (record.due_ms, record.raw))
        else:
            record.queued = max(record.queued, 1) if record.state == State.PENDING else record.queued + 1
            record.state = State.PENDING
            work.queued.push(record.queue, record.raw, front=True)
            waiting.add((record.queue, record.raw))
        return True

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self._store.snapshot() as (db, now_ms):
            records = find_records(db, [job.record.id for job in jobs], now_ms)
            waiting = self._in_queues(db, jobs)
            return [records[job.record.id] is None and _is_there(db, job, waiting) for job in jobs]

    def _in_queues(self, db: sqlite3.Connection, jobs: Sequence[UnrecordedJob]) -> set[tuple[str, bytes]]:
        queues = self._store.queue_names
        return set(find_newest(db, {(job.place, job.record.raw) for job in jobs if job.place in queues}))

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self._store.unit_of_work() as work:
            waiting = self._in_queues(work.db, jobs)
            return [self._create_record(work, job, waiting) for job in jobs]

    def _create_record(self, work: UnitOfWork, job: UnrecordedJob, waiting: set[tuple[str, bytes]]) -> bool:
        wanted = job.record
        if work.record(wanted.id) is not None or not _is_there(work.db, job, waiting):
            return False
        record = work.record_for(wanted.id, wanted.queue, wanted.raw)
        record.state, record.slot = wanted.state.value, wanted.slot
        record.error, record.result = wanted.error, wanted.result
        record.created_ms, record.started_ms, record.ended_ms = wanted.created_ms, wanted.started_ms, wanted.ended_ms
        record.attempts, record.attempt_count = encode(wanted.attempts), wanted.attempt_count
        facts = {name: getattr(wanted, name) for name in RareFacts.__struct_fields__}
        record.change_facts(**facts)
        record.batch = wanted.batch
        record.queued = int(job.place in self._store.queue_names)
        if job.place == "scheduled":
            found = work.db.execute("SELECT due_ms FROM scheduled WHERE raw = ?", (wanted.raw,)).fetchone()
            record.due_ms = found[0]
        return True

    def balance(self, drift: int, becomes: int = 0) -> bool:
        with self._store.unit_of_work() as work:
            if take_census(work.db, self._store, work.now_ms, is_exact=True).drift != drift:
                return False
            rebuild_holes(work.db)
            # The hourly counters stay: the jobs were not deleted or adopted in this hour.
            name = "deleted" if drift > becomes else "adopted"
            sql = "INSERT INTO stats VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
            work.db.execute(sql, (name, abs(drift - becomes)))
            return True


def _is_there(db: sqlite3.Connection, job: UnrecordedJob, waiting: set[tuple[str, bytes]]) -> bool:
    return (job.place, job.record.raw) in waiting or _is_in(db, job.place, job.record)


def _is_in(db: sqlite3.Connection, place: str, record: RecordRow | Record) -> bool:
    """Whether the record's job is in that place, which is not a queue."""
    sql, values = {
        "scheduled": ("scheduled WHERE raw = ?", (record.raw,)),
        "processing": ("slots WHERE slot = ? AND held = ?", (record.slot, record.raw)),
        "dead_letter": ("dead WHERE crc = ? AND raw = ?", (crc32(record.raw), record.raw)),
    }.get(place, ("slots WHERE false", ()))
    return db.execute(f"SELECT 1 FROM {sql} LIMIT 1", values).fetchone() is not None
