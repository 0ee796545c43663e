"""The SQLite broker: the rulebook over the tables of one database file, its lists by pages, and its questions that need
less than whole records.

Every call that changes something is one transaction; database.py says what a kill -9 leaves of one. Reads use the
reading connection and never wait for a writer.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PAGE_BYTES,
    PROCESSING,
    Page,
    Standing,
    check_page,
    outline_of,
    page_of_slots,
    wrong_cursor,
)
from fileq.brokers.rules.batches import BatchVerbs
from fileq.brokers.rules.operators import OperatorVerbs
from fileq.brokers.rules.queues import QueueVerbs
from fileq.brokers.rules.repairs import RepairVerbs
from fileq.brokers.rules.rows import STATES, RecordRow, facts_in
from fileq.brokers.rules.schedules import ScheduleVerbs
from fileq.brokers.rules.tables import OUTLINE, find_all, place_length, source_of
from fileq.brokers.rules.unit_of_work import Store
from fileq.brokers.sqlite.change_watcher import ChangeWatcher, SqliteSubscription
from fileq.brokers.sqlite.database import Database
from fileq.brokers.sqlite.database_schema import VERSION
from fileq.brokers.types import Record
from fileq.config import Config
from fileq.core.finding import Finding, sound
from fileq.core.job import State, wall_clock_ms

T = TypeVar("T")


def monotonic_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SqliteStore(Store):
    """With waiters and subscriptions that notice other processes. A kill -9 loses nothing of these that matters."""

    database: Database

    def __init__(
        self, config: Config, *, clock: Callable[[], int], monotonic: Callable[[], int], create: bool = True
    ) -> None:
        super().__init__(config, Database(config.sqlite.path, create=create), clock=clock, monotonic=monotonic)
        self.watcher = ChangeWatcher(self.database, self.queue_names)
        self.subscriptions: set[SqliteSubscription] = set()

    def has_subscribers(self) -> bool:
        return self.database.subscribers.exist()

    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> str:
        return self.database.leases.take(name, holder, ttl_ms, instead_of, self.monotonic())

    def wake(self) -> None:
        self.watcher.wake_all()

    def waiter(self) -> LocalWaiter:
        return self.watcher.waiter(self.config.worker.brpoplpush_timeout)

    def subscribe(self) -> SqliteSubscription:
        subscription = SqliteSubscription(self.database, self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        self.watcher.close()
        for subscription in list(self.subscriptions):
            subscription.close()
        self.database.close()


class RulebookBroker(QueueVerbs, OperatorVerbs, RepairVerbs, ScheduleVerbs, BatchVerbs):
    """The rulebook, with lists by pages and parts of records. Every method that changes something is one unit of work;
    it can be repeated as brokers/protocol.py says."""

    store: Store

    def states(self, ids: Sequence[str]) -> list[State | None]:
        return self._facts(ids, "state", lambda row: STATES[row[0]])

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        return self._facts(ids, "state, created_ms", lambda row: (STATES[row[0]], row[1]))

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        return [found or "" for found in self._facts(ids, "extra", lambda row: facts_in(row[0]).fingerprint)]

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        return self._facts(ids, OUTLINE, _as_outline)

    def _facts(self, ids: Sequence[str], columns: str, make: Callable[[tuple[Any, ...]], T]) -> list[T | None]:
        """What is made of these columns of each record; None without a record."""
        select = f"SELECT {columns}, id, expires_ms FROM records"
        with self.store.reading() as work:
            rows = find_all(work.db, select, "id", ids)
            found = {row[-2]: make(row) for row in rows if row[-1] is None or row[-1] > work.now_ms}
            return [found.get(id) for id in ids]

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        last: tuple[object, bytes] | None = None
        while True:
            # One snapshot a page: one kept open while the caller works would let the -wal file grow.
            with self.store.reading() as work:
                page = self._page(work.db, place, last, size)
            if not page:
                return
            yield [raw for _, raw in page]
            last = page[-1]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        check_page(place, size, self.store.queue_names)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        with self.store.reading() as work:
            return read_page(work.db, place, self.store.queue_names, cursor, size)

    def _page(
        self, db: sqlite3.Connection, place: str, last: tuple[object, bytes] | None, limit: int
    ) -> list[tuple[object, bytes]]:
        """The oldest jobs after `last`, as (position or due time, raw)."""
        if place == "scheduled":
            after = "" if last is None else "WHERE (due_ms, raw) > (?, ?)"
            sql = f"SELECT due_ms, raw FROM scheduled {after} ORDER BY due_ms, raw LIMIT ?"
            return db.execute(sql, (*(last or ()), limit)).fetchall()
        source, values = source_of(place, self.store.queue_names)
        after = "" if last is None else "AND position > ?"
        sql = f"SELECT position, raw FROM {source} {after} ORDER BY position LIMIT ?"
        return db.execute(sql, (*values, *(last or ())[:1], limit)).fetchall()

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        last = 0
        while True:
            with self.store.reading() as work:
                sql = "SELECT number, id, expires_ms FROM records WHERE number > ? ORDER BY number LIMIT ?"
                page = work.db.execute(sql, (last, size)).fetchall()
            if not page:
                return
            yield [id for _, id, expires_ms in page if expires_ms is None or expires_ms > work.now_ms]
            last = page[-1][0]


class SqliteBroker(RulebookBroker):
    store: SqliteStore
    kind = "sqlite"

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], int] = monotonic_clock_ms,
        create: bool = True,
    ) -> None:
        self.store = SqliteStore(config, clock=clock, monotonic=monotonic, create=create)
        self.where = self.store.database.path

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Checks the database's directory and file system. Their permissions are always checked."""
        from fileq.brokers.sqlite.examine import examine_location

        return [*examine_location(self.where), sound("schema", f"version {VERSION}")]

    def check_present(self) -> str:
        """Raises BrokerRemoved if the database file was deleted or replaced."""
        self.store.database.check_present()
        return ""

    def close(self) -> None:
        self.store.close()


def _as_outline(row: tuple[Any, ...]) -> Record:
    record = RecordRow(*row[:-2])
    return outline_of(record.view()) if record.extra else record.view()  # its other fields are empty as they were read


# Pages of a place in SQLite. The cursor is the position of the last job, so a page is found by an index.
#
# `scheduled` has no positions: its cursor is the due time of the last job, and how many jobs of that time were
# returned. Reads only, in the caller's snapshot.


_NUMBER = re.compile("-?[0-9]{1,18}")


def read_page(db: sqlite3.Connection, place: str, queues: Sequence[str], cursor: str, size: int) -> Page:
    total, next_cursor = place_length(db, place), ""
    if place == "scheduled":
        due_ms, skipped = _numbers(cursor, 2) if cursor else (-(2**63), 0)
        sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms >= ? ORDER BY due_ms, raw LIMIT ? OFFSET ?"
        rows, is_last = _cut(db.execute(sql, (due_ms, size + 1, skipped)), size)
        if not is_last:
            last_ms = rows[-1][0]
            same = sum(due == last_ms for due, _ in rows) + (skipped if last_ms == due_ms else 0)
            next_cursor = f"{last_ms}.{same}"
    else:
        source, values = source_of(place, queues)
        after, order = ("<", "DESC") if place in NEWEST_FIRST else (">", "ASC")
        condition = f"AND position {after} ?" if cursor else ""
        at = _numbers(cursor, 1) if cursor else ()
        sql = f"SELECT position, raw FROM {source} {condition} ORDER BY position {order} LIMIT ?"
        rows, is_last = _cut(db.execute(sql, (*values, *at, size + 1)), size)
        next_cursor = "" if is_last else str(rows[-1][0])
    return Page(tuple(raw for _, raw in rows), next_cursor, total)


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


def _numbers(cursor: str, count: int) -> tuple[int, ...]:
    parts = cursor.split(".")
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise wrong_cursor(cursor)
    return tuple(map(int, parts))
