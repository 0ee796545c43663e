"""The books of one transaction: what it has read, what it has changed, and the few moves every verb is made of.

A verb reads as in the memory broker, one job after the other, while records, slots, ledger entries,
counters and events are gathered here and written by a few executemany at the end: that makes a batch cheap.
Elements move at once, because the next job of the batch may ask for them. Nothing here begins or ends a
transaction, and nothing read here outlives it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

import msgspec

from fileq.brokers.sqlite.listing import Listing
from fileq.brokers.sqlite.rows import (
    SAVE_ROW,
    SAVE_SLOT,
    Element,
    Row,
    Slot,
    find_ledger_entry,
    find_rows,
    find_slots,
    from_ledger_entry,
)
from fileq.brokers.types import LedgerEntry
from fileq.config import Config
from fileq.core.job import State, Version, decode_or_none

EVENTS_KEPT = 10_000
EXPIRED_AT_ONCE = 500  # records deleted by one transaction because their time has come
HOUR_MS = 3_600_000


class Books:
    def __init__(
        self, db: sqlite3.Connection, config: Config, *, boot: str, now_ms: int, monotonic_ms: int, is_heard: bool
    ) -> None:
        self.db = db
        self.config = config
        self.boot = boot
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.is_heard = is_heard  # somebody listens to events
        self.has_pushed = False
        self._rows: dict[str, Row | None] = {}
        self._changed_rows: dict[str, None] = {}  # a set in order, so that neighbours are written side by side
        self._slots: dict[str, Slot | None] = {}
        self._changed_slots: set[str] = set()
        self._ledger: dict[bytes, LedgerEntry | None] = {}
        self._changed_paths: set[bytes] = set()
        self._ends: dict[str, list[int]] = {}  # queue → first free position before and after its elements
        self._listings: dict[State, Listing] = {}
        self._counts: Counter[str] = Counter()
        self._events: list[bytes] = []
        self._delete_expired()

    def _delete_expired(self) -> None:
        self.db.execute(
            "DELETE FROM records WHERE number IN (SELECT number FROM records WHERE expires_ms <= ? LIMIT ?)",
            (self.now_ms, EXPIRED_AT_ONCE),
        )

    # records

    def expect(self, ids: Iterable[str]) -> None:
        """Read these records in one go; row() has them then."""
        self._rows.update(find_rows(self.db, [id for id in dict.fromkeys(ids) if id not in self._rows], self.now_ms))

    def row(self, id: str) -> Row | None:
        """The job's record, to look at; change it only after row_for() or change()."""
        if id not in self._rows:
            self.expect([id])
        return self._rows[id]

    def row_for(self, id: str, queue: str, raw: bytes) -> Row:
        """The job's record, made if there is none, to be changed; it no longer expires."""
        row = self.row(id)
        if row is None:
            row = self._rows[id] = Row(id, State.PENDING, raw, queue, created_ms=self.now_ms)
        row.expires_ms = None
        self._changed_rows[id] = None
        return row

    def change(self, row: Row) -> Row:
        self._changed_rows[row.id] = None
        return row

    def drop_row(self, id: str) -> None:
        self._rows[id] = None
        self._changed_rows[id] = None

    # slots

    def expect_slots(self, names: Iterable[str]) -> None:
        """Read these in one go; slot() has them then."""
        self._slots.update(find_slots(self.db, [name for name in dict.fromkeys(names) if name not in self._slots]))

    def slot(self, name: str) -> Slot | None:
        """To look at; change it only after change_slot()."""
        if name not in self._slots:
            self.expect_slots([name])
        return self._slots[name]

    def change_slot(self, slot: Slot) -> Slot:
        self._slots[slot.slot] = slot
        self._changed_slots.add(slot.slot)
        return slot

    def is_alive(self, slot: Slot) -> bool:
        return slot.is_alive(self.boot, self.monotonic_ms)

    def beat(self, slot: Slot) -> None:
        ttl_ms = int(self.config.worker.heartbeat_ttl * 1000)
        slot.boot, slot.alive_until_ms = self.boot, self.monotonic_ms + ttl_ms
        self._changed_slots.add(slot.slot)

    # the ledger

    def ledger_entry(self, path: bytes) -> LedgerEntry | None:
        if path not in self._ledger:
            self._ledger[path] = find_ledger_entry(self.db, path)
        return self._ledger[path]

    def update_ledger(self, path: bytes, becomes: LedgerEntry | None) -> None:
        self._ledger[path] = becomes
        self._changed_paths.add(path)

    def learn(self, version: Version, job_id: str) -> None:
        known = self.ledger_entry(version.path) or LedgerEntry()
        self.update_ledger(version.path, known.with_version(version, job_id))

    # counters and events

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self._counts[name] += by

    def publish(self, event: bytes) -> None:
        if event:
            self._events.append(event)

    # moves

    def push(self, row: Row, *, front: bool) -> None:
        """The record's element enters its queue."""
        row.state, row.due_ms, row.queued = State.PENDING, 0, row.queued + 1
        self.push_raw(row.queue, row.raw, front=front)

    def push_raw(self, queue: str, raw: bytes, *, front: bool) -> None:
        ends = self._ends.get(queue) or self._find_ends(queue)
        position = ends[not front]
        ends[not front] += -1 if front else 1
        if front:
            self.db.execute("DELETE FROM holes WHERE queue = ? AND position = ?", (queue, position))
        self.db.execute("INSERT INTO queued VALUES (?, ?, ?)", (queue, position, raw))
        self.has_pushed = True

    def _find_ends(self, queue: str) -> list[int]:
        # One look at the index each; min and max in one statement would read the whole queue.
        (first,) = self.db.execute("SELECT min(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
        (last,) = self.db.execute("SELECT max(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
        if first is None:
            # Positions begin anew, and where there were holes there may be elements.
            self.db.execute("DELETE FROM holes WHERE queue = ?", (queue,))
        ends = self._ends[queue] = [0, 1] if first is None else [first - 1, last + 1]
        return ends

    def heads(self, queue: str, wanted: int) -> Iterator[Element]:
        """The next elements of a queue, at most `wanted`, with their records read ahead; take() what is claimed."""
        sql = "SELECT position, raw FROM queued WHERE queue = ? ORDER BY position LIMIT ?"
        elements = [Element(at, raw, decode_or_none(raw)) for at, raw in self.db.execute(sql, (queue, wanted))]
        self.expect(element.job.id for element in elements if element.job is not None)
        yield from elements

    def take_from_the_middle(self, queue: str, position: int) -> None:
        """Take one out of turn, and remember the hole: the length is told by the ends and the holes between them."""
        self.take([(queue, position)])
        self.db.execute("INSERT OR REPLACE INTO holes VALUES (?, ?)", (queue, position))
        # Outside the ends the next elements will lie.
        before, after = self._find_ends(queue)
        sql = "DELETE FROM holes WHERE queue = ? AND (position <= ? OR position >= ?)"
        self.db.execute(sql, (queue, before, after))

    def take(self, places: list[tuple[str, int]]) -> None:
        self.db.executemany("DELETE FROM queued WHERE queue = ? AND position = ?", places)

    def disown(self, queue: str, raw: bytes, *, front: bool) -> None:
        """Bytes that are not a job enter a queue again: nobody can tell them from a stranger's, so they are
        taken out of the books here and the next claim adopts them anew."""
        self.push_raw(queue, raw, front=front)
        self.count("adopted", -1)

    def schedule(self, row: Row, state: State, due_ms: int) -> None:
        """A blank is added while another copy of the same bytes waits too."""
        while self.is_scheduled(row.raw):
            row.raw += b" "
        row.state, row.due_ms = state, due_ms
        self.db.execute("INSERT INTO scheduled VALUES (?, ?)", (due_ms, row.raw))

    def is_scheduled(self, raw: bytes) -> bool:
        return self.db.execute("SELECT 1 FROM scheduled WHERE raw = ?", (raw,)).fetchone() is not None

    def bury(self, row: Row) -> None:
        row.state, row.ended_ms = State.DEAD, self.now_ms
        self.db.execute("INSERT INTO dead (raw, crc) VALUES (?, ?)", (row.raw, crc32(row.raw)))
        self.count("dead")

    def exhume(self, raw: bytes) -> bool:
        """Remove the oldest dead element of these bytes; False: there is none."""
        sql = "DELETE FROM dead WHERE position = (SELECT min(position) FROM dead WHERE crc = ? AND raw = ?)"
        return self.db.execute(sql, (crc32(raw), raw)).rowcount > 0

    def end(self, row: Row, state: State) -> None:
        """Completed or cancelled: listed, counted, and forgotten in time."""
        row.state, row.ended_ms = state, self.now_ms
        if not row.queued:  # else a copy of it still waits, and needs the record
            row.expires_ms = self.now_ms + int(self.config.worker.history_ttl * 1000)
        if state not in self._listings:
            self._listings[state] = Listing(self.db, state)
        self._listings[state].append(row.raw)
        self.count(state.value)
        for raw in self._listings[state].trim(self.config.worker.completed_max):
            if (fallen := decode_or_none(raw)) is not None:
                self._forget(fallen.id, state)

    def _forget(self, id: str, state: State) -> None:
        """Off the list, its record goes too, unless that is about something else by now."""
        if id not in self._rows:
            # Unread, it is as the table has it.
            self.db.execute("DELETE FROM records WHERE id = ? AND state = ? AND queued = 0", (id, state.value))
        elif (row := self._rows[id]) is not None and row.state == state and not row.queued:
            self.drop_row(id)

    # the end of the transaction

    def write(self) -> None:
        """Everything gathered goes to the tables; the commit is the caller's."""
        astuple = msgspec.structs.astuple
        rows = [(id, self._rows[id]) for id in self._changed_rows]
        self._each("DELETE FROM records WHERE id = ?", [(id,) for id, row in rows if row is None])
        self._each(SAVE_ROW, [astuple(row) for _, row in rows if row is not None])
        slots = [self._slots[name] for name in self._changed_slots]
        self._each(SAVE_SLOT, [astuple(slot) for slot in slots if slot is not None])
        paths = [(path, self._ledger[path]) for path in self._changed_paths]
        self._each("DELETE FROM ledger WHERE path = ?", [(path,) for path, entry in paths if entry is None])
        self._each(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?)",
            [(path, from_ledger_entry(entry)) for path, entry in paths if entry is not None],
        )
        for listing in self._listings.values():
            listing.write()
        self._write_counts()
        self._write_events()

    def _write_counts(self) -> None:
        hour = self.now_ms // HOUR_MS
        self._each(
            "INSERT INTO stats VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            list(self._counts.items()),
        )
        self._each(
            "INSERT INTO hourly VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(hour, name, by) for name, by in self._counts.items()],
        )
        if self._counts:
            self.db.execute("DELETE FROM hourly WHERE hour < ?", (oldest_hour_kept(self.config, self.now_ms),))

    def _write_events(self) -> None:
        if self._events:
            self._each("INSERT INTO events (body) VALUES (?)", [(body,) for body in self._events])
            self.db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (EVENTS_KEPT,))

    def _each(self, sql: str, values: Sequence[tuple[object, ...]]) -> None:
        if values:
            self.db.executemany(sql, values)


def oldest_hour_kept(config: Config, now_ms: int) -> int:
    return now_ms // HOUR_MS - int(config.observability.stats_retention / 3600)
