"""The SQLite broker: the rulebook over the tables of one database file, its lists by pages, and its questions that need
less than whole records.

Every call that changes something is one transaction; database.py says what a kill -9 leaves of one. Reads use the
reading connection and never wait for a writer.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence

from fileq.brokers.batches import MEMBERS_PAGE, BatchPage, MemberPage
from fileq.brokers.clocks import monotonic_clock_ms, wall_clock_ms
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PAGE_BYTES,
    PROCESSING,
    LedgerPage,
    Page,
    Standing,
    check_page,
    ledger_page_of,
    outline_of,
    page_of_slots,
    path_of_cursor,
    wrong_cursor,
)
from fileq.brokers.rules import RulebookBroker
from fileq.brokers.rules.batches import with_running
from fileq.brokers.rules.rows import MemberState
from fileq.brokers.sqlite.database_schema import VERSION
from fileq.brokers.sqlite.rows import (
    decode_ledger_entry,
    find_fingerprints,
    find_outlines,
    find_standings,
    find_states,
)
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import member_page, place_length, source_of
from fileq.brokers.types import LedgerEntry, Record
from fileq.config import Config
from fileq.core.batch import KEPT_MS
from fileq.core.finding import Finding, sound
from fileq.core.job import State

_LEDGER_PAGE = 500


class SqliteBroker(RulebookBroker):
    _store: SqliteStore
    kind = "sqlite"

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], int] = monotonic_clock_ms,
        create: bool = True,
    ) -> None:
        self._store = SqliteStore(config, clock=clock, monotonic=monotonic, create=create)
        self.where = self._store.database.path

    @property
    def store(self) -> SqliteStore:
        """The back door of tests: what another program can do to the database."""
        return self._store

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Checks the database's directory and file system. Their permissions are always checked."""
        from fileq.brokers.sqlite.examine import examine_location

        return [*examine_location(self.where), sound("schema", f"version {VERSION}")]

    def check_present(self) -> str:
        """Raises BrokerRemoved if the database file was deleted or replaced."""
        self._store.database.check_present()
        return ""

    def close(self) -> None:
        self._store.close()

    # lists by pages, and parts of records

    def states(self, ids: Sequence[str]) -> list[State | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_states(db, ids, now_ms)
            return [found.get(id) for id in ids]

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_outlines(db, ids, now_ms)
            return [outline_of(record.view()) if (record := found.get(id)) is not None else None for id in ids]

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        with self._store.snapshot() as (db, now_ms):
            found = find_fingerprints(db, ids, now_ms)
            return [found.get(id, "") for id in ids]

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_standings(db, ids, now_ms)
            return [found.get(id) for id in ids]

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        last: tuple[object, bytes] | None = None
        while True:
            # One snapshot a page: one kept open while the caller works would let the -wal file grow.
            with self._store.snapshot() as (db, _):
                page = self._page(db, place, last, size)
            if not page:
                return
            yield [raw for _, raw in page]
            last = page[-1]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        check_page(place, size, self._store.queue_names)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        with self._store.snapshot() as (db, _):
            return read_page(db, place, self._store.queue_names, cursor, size)

    def _page(
        self, db: sqlite3.Connection, place: str, last: tuple[object, bytes] | None, limit: int
    ) -> list[tuple[object, bytes]]:
        """The oldest jobs after `last`, as (position or due time, raw)."""
        if place == "scheduled":
            after = "" if last is None else "WHERE (due_ms, raw) > (?, ?)"
            sql = f"SELECT due_ms, raw FROM scheduled {after} ORDER BY due_ms, raw LIMIT ?"
            return db.execute(sql, (*(last or ()), limit)).fetchall()
        source, values = source_of(place, self._store.queue_names)
        after = "" if last is None else "AND position > ?"
        sql = f"SELECT position, raw FROM {source} {after} ORDER BY position LIMIT ?"
        return db.execute(sql, (*values, *(last or ())[:1], limit)).fetchall()

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

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        first, comparison = under, ">="
        while True:
            sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
            with self._store.snapshot() as (db, _):
                page = db.execute(sql, (first, _LEDGER_PAGE)).fetchall()
            for path, entry in page:
                if not path.startswith(under):
                    return
                yield path, decode_ledger_entry(entry)
            if not page:
                return
            first, comparison = page[-1][0], ">"

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        last = path_of_cursor(cursor)
        comparison, first = (">", last) if last else (">=", under)
        sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
        with self._store.snapshot() as (db, _):
            page = db.execute(sql, (first, size)).fetchall()
        found = [(path, decode_ledger_entry(entry)) for path, entry in page if path.startswith(under)]
        return ledger_page_of(found, size)

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        with self._store.reading() as work:
            kept = "finished_ms = 0" if unfinished else "(finished_ms = 0 OR finished_ms > ?)"
            values: tuple[object, ...] = () if unfinished else (work.now_ms - KEPT_MS,)
            if cursor:
                created_ms, _, id = cursor.partition(".")
                kept, values = f"{kept} AND (created_ms, id) < (?, ?)", (*values, int(created_ms), id)
            sql = f"SELECT created_ms, id FROM batches WHERE {kept} ORDER BY created_ms DESC, id DESC LIMIT ?"
            rows = work.db.execute(sql, (*values, limit + 1)).fetchall()
            found = with_running(work, [work.batches.find(id) for _, id in rows[:limit]])
            return BatchPage(tuple(filter(None, found)), "{}.{}".format(*rows[limit - 1]) if len(rows) > limit else "")

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.UNFINISHED, cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.DEAD, cursor, limit)

    def _members(self, id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        with self._store.reading() as work:
            is_there = work.batches.find(id) is not None
            return member_page(work.db, id, state, cursor, limit) if is_there else MemberPage(())


# Pages of a place in SQLite. The cursor is the position of the last job, so a page is found by an index.
#
# `scheduled` has no positions: its cursor is the due time of the last job, and how many jobs of that time were
# returned. Reads only, in the caller's snapshot.


_NUMBER = re.compile("-?[0-9]{1,18}")


def read_page(db: sqlite3.Connection, place: str, queues: Sequence[str], cursor: str, size: int) -> Page:
    total = place_length(db, place)
    if place == "scheduled":
        due_ms, skipped = _numbers(cursor, 2) if cursor else (-(2**63), 0)
        sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms >= ? ORDER BY due_ms, raw LIMIT ? OFFSET ?"
        rows, is_last = _cut(db.execute(sql, (due_ms, size + 1, skipped)), size)
        if is_last:
            return Page(_raws(rows), "", total)
        last_ms = rows[-1][0]
        same = sum(due == last_ms for due, _ in rows) + (skipped if last_ms == due_ms else 0)
        return Page(_raws(rows), f"{last_ms}.{same}", total)
    source, values = source_of(place, queues)
    after, order = ("<", "DESC") if place in NEWEST_FIRST else (">", "ASC")
    condition = f"AND position {after} ?" if cursor else ""
    at = _numbers(cursor, 1) if cursor else ()
    sql = f"SELECT position, raw FROM {source} {condition} ORDER BY position {order} LIMIT ?"
    rows, is_last = _cut(db.execute(sql, (*values, *at, size + 1)), size)
    return Page(_raws(rows), "" if is_last else str(rows[-1][0]), total)


def _cut(rows: Iterable[tuple[int, bytes]], size: int) -> tuple[list[tuple[int, bytes]], bool]:
    """The rows of a page, and whether they are the last ones."""
    page: list[tuple[int, bytes]] = []
    page_bytes = 0
    for row in rows:
        page_bytes += len(row[1])
        if len(page) == size or (page and page_bytes > PAGE_BYTES):
            return page, False
        page.append(row)
    return page, True


def _raws(rows: Iterable[tuple[int, bytes]]) -> tuple[bytes, ...]:
    return tuple(raw for _, raw in rows)


def _numbers(cursor: str, count: int) -> tuple[int, ...]:
    parts = cursor.split(".")
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise wrong_cursor(cursor)
    return tuple(map(int, parts))
