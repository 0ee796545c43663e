"""The SQLite broker under repair. Follows the memory broker's line by line, on the books of a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from zlib import crc32

from msgspec.json import encode

from fileq.brokers.sqlite.books import Books
from fileq.brokers.sqlite.inspector import SqliteInspector
from fileq.brokers.sqlite.rows import Row, find_rows
from fileq.brokers.sqlite.schema import find_holes
from fileq.brokers.types import Record, UnrecordedJob
from fileq.core.job import State


class SqliteMending(SqliteInspector):
    def ids(self, size: int = 500) -> Iterator[list[str]]:
        last = 0
        while True:
            with self.reading() as (db, now):
                sql = "SELECT number, id, expires_ms FROM records WHERE number > ? ORDER BY number LIMIT ?"
                page = db.execute(sql, (last, size)).fetchall()
            if not page:
                return
            yield [id for _, id, expires_ms in page if expires_ms is None or expires_ms > now]
            last = page[-1][0]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        with self.reading() as (db, now):
            rows = find_rows(db, ids, now)
            return [(row := rows[id]) is not None and self._is_astray(db, row) for id in ids]

    def _is_astray(self, db: sqlite3.Connection, row: Row) -> bool:
        """False when it has ended, and lies nowhere for ever; and for a queue that only another configuration knows."""
        place = {
            State.PENDING: row.queue,
            State.SCHEDULED: "scheduled",
            State.RETRYING: "scheduled",
            State.RUNNING: "processing",
            State.DEAD: "dead_letter",
        }.get(State(row.state))
        return place is not None and row.queue in self.queue_names and not self._lies(db, place, row)

    def _lies(self, db: sqlite3.Connection, place: str, row: Row | Record) -> bool:
        sql, values = {
            "scheduled": ("scheduled WHERE raw = ?", (row.raw,)),
            "processing": ("slots WHERE slot = ? AND held = ?", (row.worker, row.raw)),
            "dead_letter": ("dead WHERE crc = ? AND raw = ?", (crc32(row.raw), row.raw)),
        }.get(place, ("queued WHERE queue = ? AND raw = ?", (place, row.raw)))
        return db.execute(f"SELECT 1 FROM {sql} LIMIT 1", values).fetchone() is not None

    def restore(self, ids: Sequence[str]) -> list[bool]:
        with self.writing() as books:
            answers = [self._reinstate(books, books.row(id)) for id in ids]
            if any(answers):
                find_holes(books.db)  # whoever took them out has left some
            return answers

    def _reinstate(self, books: Books, row: Row | None) -> bool:
        if row is None or not self._is_astray(books.db, row):
            return False
        books.change(row).expires_ms = None
        if row.state == State.DEAD:
            books.db.execute("INSERT INTO dead (raw, crc) VALUES (?, ?)", (row.raw, crc32(row.raw)))
        elif row.state in (State.SCHEDULED, State.RETRYING):
            books.db.execute("INSERT INTO scheduled VALUES (?, ?)", (row.due_ms, row.raw))
        else:
            row.queued = max(row.queued, 1) if row.state == State.PENDING else row.queued + 1
            row.state = State.PENDING
            books.push_raw(row.queue, row.raw, front=True)
        return True

    def unrecorded(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        with self.reading() as (db, now):
            rows = find_rows(db, [stray.record.id for stray in strays], now)
            return [rows[stray.record.id] is None and self._lies(db, stray.place, stray.record) for stray in strays]

    def create_record(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        with self.writing() as books:
            return [self._rerecord(books, stray) for stray in strays]

    def _rerecord(self, books: Books, stray: UnrecordedJob) -> bool:
        was = stray.record
        if books.row(was.id) is not None or not self._lies(books.db, stray.place, was):
            return False
        row = books.row_for(was.id, was.queue, was.raw)
        row.state, row.worker, row.error, row.result = was.state.value, was.worker, was.error, was.result
        row.created_ms, row.started_ms, row.ended_ms = was.created_ms, was.started_ms, was.ended_ms
        row.attempts, row.attempt_count = encode(was.attempts), was.attempt_count
        row.queued = int(stray.place in self.queue_names)
        if stray.place == "scheduled":
            row.due_ms = books.db.execute("SELECT due_ms FROM scheduled WHERE raw = ?", (was.raw,)).fetchone()[0]
        return True

    def balance(self, drift: int, becomes: int = 0) -> bool:
        with self.writing() as books:
            if self.census_in(books.db, books.now_ms, is_counted=True).drift != drift:
                return False
            find_holes(books.db)
            # The hour's counters stay: nothing happened in this hour.
            name = "deleted" if drift > becomes else "adopted"
            sql = "INSERT INTO stats VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
            books.db.execute(sql, (name, abs(drift - becomes)))
            return True
