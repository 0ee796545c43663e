"""The operator's face of the SQLite broker. Looks use the reading connection and never wait for a writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from fileq.brokers import events
from fileq.brokers.sqlite.books import HOUR_MS, Books, oldest_hour_kept
from fileq.brokers.sqlite.listing import first_and_last
from fileq.brokers.sqlite.rows import Row, all_slots, find_row, find_rows
from fileq.brokers.sqlite.state import SqliteState
from fileq.brokers.types import CancelResult, Census, Overview, Record, Revival, WorkerInfo, WorkerView
from fileq.core.errors import BrokerError
from fileq.core.job import State, decode_or_none

_ENDED = ("dead_letter", "completed", "cancelled")


class SqliteInspector(SqliteState):
    def census(self, *, sweep: bool = False) -> Census:
        with self.reading() as (db, now):
            return self.census_in(db, now, is_counted=sweep)

    def census_in(self, db: sqlite3.Connection, now: int, *, is_counted: bool = False) -> Census:
        """`is_counted`: every element of a queue is counted, whatever its ends tell; that takes longer."""
        if is_counted:
            lengths = dict(db.execute("SELECT queue, count(*) FROM queued GROUP BY queue"))
        else:
            lengths = {queue: length_of(db, queue) for queue in all_queues(db)}
        return Census(
            pending={**dict.fromkeys(self.queue_names, 0), **lengths},
            scheduled=_number(db, "SELECT count(*) FROM scheduled"),
            running=_number(db, "SELECT count(held) FROM slots"),
            dead=_number(db, "SELECT count(*) FROM dead"),
            completed=_length(db, State.COMPLETED),
            cancelled=_length(db, State.CANCELLED),
            heartbeats=_number(
                db,
                "SELECT count(*) FROM slots WHERE boot = ? AND alive_until_ms > ?",
                (self.store.boot, self.monotonic()),
            ),
            counters=dict(db.execute("SELECT name, value FROM stats")),
            paused=frozenset(queue for (queue,) in db.execute("SELECT queue FROM paused")),
            now_ms=now,
        )

    def overview(self, hours: int = 2) -> Overview:
        with self.reading() as (db, now):
            pages = {queue: self._page(db, queue, None, 1) for queue in self.queue_names}
            return Overview(
                census=self.census_in(db, now),
                fronts={queue: page[0][1] for queue, page in pages.items() if page},
                workers=self._workers_in(db, now),
                hours=self._hours_in(db, now, hours),
            )

    def peek(self, place: str, limit: int) -> list[bytes]:
        with self.reading() as (db, _):
            if place in _ENDED:
                sql, values = self._elements(place)
                found = db.execute(f"SELECT raw FROM {sql} ORDER BY position DESC LIMIT ?", (*values, limit))
                return [raw for (raw,) in found]
            return [raw for *_, raw in self._page(db, place, None, limit)]

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        last: tuple[object, ...] | None = None
        while True:
            # Each page is a look of its own: one held open while the caller thinks would keep the log growing.
            with self.reading() as (db, _):
                page = self._page(db, place, last, size)
            if not page:
                return
            yield [raw for *_, raw in page]
            last = page[-1]

    def _page(
        self, db: sqlite3.Connection, place: str, last: tuple[object, ...] | None, limit: int
    ) -> list[tuple[object, bytes]]:
        """(position or due, element) of the oldest behind `last`."""
        if place == "scheduled":
            after = "" if last is None else "WHERE (due_ms, raw) > (?, ?)"
            sql = f"SELECT due_ms, raw FROM scheduled {after} ORDER BY due_ms, raw LIMIT ?"
            return db.execute(sql, (*(last or ()), limit)).fetchall()
        source, values = self._elements(place)
        after = "" if last is None else "AND position > ?"
        sql = f"SELECT position, raw FROM {source} {after} ORDER BY position LIMIT ?"
        return db.execute(sql, (*values, *(last or ())[:1], limit)).fetchall()

    def _elements(self, place: str) -> tuple[str, tuple[str, ...]]:
        """Where the elements of a place lie, as SQL, with its values."""
        if place in self.queue_names:
            return "queued WHERE queue = ?", (place,)
        if place not in _ENDED:
            places = ", ".join((*self.queue_names, *_ENDED, "scheduled"))
            raise BrokerError(f"no place is called {place!r}; there are {places}")
        return ("dead WHERE true", ()) if place == "dead_letter" else ("ended WHERE state = ?", (place,))

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        with self.reading() as (db, now):
            rows = [find_row(db, id, now) for id in ids]
            return [row.view() if row is not None else None for row in rows]

    def workers(self) -> list[WorkerView]:
        with self.reading() as (db, now):
            return list(self._workers_in(db, now))

    def _workers_in(self, db: sqlite3.Connection, now: int) -> tuple[WorkerView, ...]:
        monotonic = self.monotonic()
        slots = [slot for slot in all_slots(db) if slot.info is not None]
        jobs = {slot.slot: decode_or_none(slot.held) for slot in slots if slot.held is not None}
        rows = find_rows(db, [job.id for job in jobs.values() if job is not None], now)
        since = {name: row.started_ms for name, job in jobs.items() if job is not None and (row := rows[job.id])}
        return tuple(
            WorkerView(
                slot.slot,
                msgspec.json.decode(slot.info or b"", type=WorkerInfo),
                slot.is_alive(self.store.boot, monotonic),
                slot.held or b"",
                since.get(slot.slot, 0),
            )
            for slot in slots
        )

    def cancel(self, ids: Sequence[str]) -> list[CancelResult]:
        with self.writing() as books:
            return [self._cancel(books, books.row(id)) for id in ids]

    def _cancel(self, books: Books, row: Row | None) -> CancelResult:
        if row is None:
            return CancelResult.UNKNOWN
        if row.state == State.RUNNING:
            books.change(row).is_cancel_requested = True
            return CancelResult.REQUESTED
        if row.state == State.PENDING and _leave_queue(books, row):
            row.queued -= 1
        elif row.state not in (State.SCHEDULED, State.RETRYING) or not _leave_schedule(books, row):
            return CancelResult.ENDED
        books.change(row).error = "cancelled"
        books.end(row, State.CANCELLED)
        books.publish(events.cancelled(row.id, row.queue) if books.is_heard else b"")
        return CancelResult.CANCELLED

    def revive(self, revivals: Sequence[Revival]) -> list[bool]:
        with self.writing() as books:
            return [self._revive(books, revival) for revival in revivals]

    def _revive(self, books: Books, revival: Revival) -> bool:
        if not books.exhume(revival.raw):
            return False
        row = books.row(revival.id)
        queue = row.queue if row is not None else revival.queue
        if decode_or_none(revival.revived) is None:
            books.disown(queue, revival.revived, front=False)
            books.drop_row(revival.id)
        else:
            row = books.row_for(revival.id, queue, revival.revived)
            row.raw, row.error, row.ended_ms, row.is_cancel_requested = revival.revived, "", 0, False
            books.push(row, front=False)
        return True

    def discard(self, elements: Sequence[tuple[str, bytes]]) -> int:
        with self.writing() as books:
            there = [id for id, raw in elements if books.exhume(raw)]
            for id in there:
                row = books.row(id)
                if row is not None and row.state == State.DEAD and not row.queued:  # else a copy still waits
                    books.drop_row(id)
            books.count("deleted", len(there))
            return len(there)

    def pause(self, queue: str) -> None:
        with self.writing() as books:
            books.db.execute("INSERT OR IGNORE INTO paused VALUES (?)", (queue,))

    def resume(self, queue: str) -> None:
        with self.writing() as books:
            books.db.execute("DELETE FROM paused WHERE queue = ?", (queue,))
        self.watcher.wake_all()

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        with self.reading() as (db, now):
            return self._hours_in(db, now, hours)

    def _hours_in(self, db: sqlite3.Connection, now: int, hours: int) -> dict[int, dict[str, int]]:
        newest = now // HOUR_MS
        oldest = max(newest - hours + 1, oldest_hour_kept(self.config, now))
        found: dict[int, dict[str, int]] = {}
        sql = "SELECT hour, name, value FROM hourly WHERE hour BETWEEN ? AND ?"
        for hour, name, value in db.execute(sql, (oldest, newest)):
            found.setdefault(hour, {})[name] = value
        return found


def _leave_queue(books: Books, row: Row) -> bool:
    """The newest element of these bytes goes; a look at the whole queue, as nothing but its bytes tells it."""
    sql = "SELECT position FROM queued WHERE queue = ? AND raw = ? ORDER BY position DESC LIMIT 1"
    found = books.db.execute(sql, (row.queue, row.raw)).fetchone()
    if found is not None:
        books.take_from_the_middle(row.queue, found[0])
    return found is not None


def _leave_schedule(books: Books, row: Row) -> bool:
    return books.db.execute("DELETE FROM scheduled WHERE raw = ?", (row.raw,)).rowcount > 0


def _number(db: sqlite3.Connection, sql: str, values: tuple[object, ...] = ()) -> int:
    number: int = db.execute(sql, values).fetchone()[0]
    return number


def all_queues(db: sqlite3.Connection) -> Iterator[str]:
    """Every queue that has an element, those of other configurations too; from one to the next along the index."""
    last = ""
    while (found := db.execute("SELECT min(queue) FROM queued WHERE queue > ?", (last,)).fetchone()[0]) is not None:
        yield found
        last = found


def length_of(db: sqlite3.Connection, queue: str) -> int:
    """By the ends of the queue and the holes between them: one look at an index each, however long it is."""
    (first,) = db.execute("SELECT min(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    (last,) = db.execute("SELECT max(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    sql = "SELECT count(*) FROM holes WHERE queue = ? AND position > ? AND position < ?"
    length: int = last - first + 1 - _number(db, sql, (queue, first, last))
    return length


def _length(db: sqlite3.Connection, state: State) -> int:
    first, last = first_and_last(db, state)
    return last - first + 1
