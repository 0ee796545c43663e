"""The SQLite broker, put together: one store, and the groups of the protocol over it.

Every call that changes something is one transaction; database.py says what a kill -9 leaves of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.clocks import monotonic_clock_ms, wall_clock_ms
from fileq.brokers.protocol import Order
from fileq.brokers.sqlite.batches import SqliteBatches
from fileq.brokers.sqlite.database_schema import VERSION
from fileq.brokers.sqlite.inspector import SqliteInspector, SqliteProducers
from fileq.brokers.sqlite.queues import SqliteQueues
from fileq.brokers.sqlite.repairer import SqliteRepairer
from fileq.brokers.sqlite.schedules import SqliteSchedules
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.config import Config
from fileq.core.finding import Finding, sound
from fileq.core.job import State

# The SQLite broker's catalog: catalog.Catalog over a SqliteStore. Every change is one transaction.


class SqliteCatalog:
    _store: SqliteStore

    def documents(self, kind: str) -> dict[str, Document]:
        check_name("kind", kind)
        with self._store.snapshot() as (db, _):
            rows = db.execute("SELECT name, body, revision FROM documents WHERE kind = ?", (kind,))
            return {name: Document(body, revision) for name, body, revision in rows}

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        return [self.documents(kind) for kind in kinds]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        with self._store.unit_of_work() as work:
            was = _find(work.db, kind, name)
            if was is not None and was.body == body:
                return was.revision
            _check_expected(kind, name, was, expected)
            revision = _next_revision(work, kind)
            work.db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (kind, name, revision, body))
            return revision

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        with self._store.unit_of_work() as work:
            was = _find(work.db, kind, name)
            if was is None:
                return False
            _check_expected(kind, name, was, expected)
            _next_revision(work, kind)
            work.db.execute("DELETE FROM documents WHERE kind = ? AND name = ?", (kind, name))
            return True

    def catalog_revision(self, kind: str) -> int:
        check_name("kind", kind)
        with self._store.snapshot() as (db, _):
            found = db.execute("SELECT revision FROM catalog_revisions WHERE kind = ?", (kind,)).fetchone()
            return found[0] if found is not None else 0


def _find(db: sqlite3.Connection, kind: str, name: str) -> Document | None:
    sql = "SELECT body, revision FROM documents WHERE kind = ? AND name = ?"
    found = db.execute(sql, (kind, name)).fetchone()
    return Document(*found) if found is not None else None


def _check_expected(kind: str, name: str, was: Document | None, expected: int | None) -> None:
    found = was.revision if was is not None else 0
    if expected is not None and expected != found:
        raise conflict(kind, name, expected, found)


def _next_revision(work: UnitOfWork, kind: str) -> int:
    sql = "INSERT INTO catalog_revisions VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1"
    revision: int = work.db.execute(f"{sql} RETURNING revision", (kind,)).fetchone()[0]
    return revision


# The SQLite broker's orders: file_orders.FileOrders over a SqliteStore.


_PAGE = 500
_DUE = (
    "SELECT id, slot, at_ms, body FROM orders WHERE id > ? AND (at_ms < ? OR NOT EXISTS "
    "(SELECT 1 FROM slots WHERE slots.slot = orders.slot AND info IS NOT NULL)) ORDER BY id LIMIT ?"
)


class SqliteFileOrders:
    _store: SqliteStore

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        after = ""
        while True:
            with self._store.snapshot() as (db, now_ms):
                page = db.execute(_DUE, (after, now_ms - older_than_ms, _PAGE)).fetchall()
            for row in page:
                yield Order(*row)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        if not done:
            return []
        with self._store.unit_of_work() as work:
            work.db.executemany("DELETE FROM orders WHERE id = ?", [(id,) for id, _ in done])
            work.read_records([id for id, _ in done])
            return [_write_path(work, id, path) for id, path in done]


def _write_path(work: UnitOfWork, id: str, path: bytes) -> bool:
    record = work.record(id)
    if record is None or record.state not in (State.COMPLETED, State.DEAD):
        return False
    if path:
        work.change_record(record).moved_to = path
    return True


class SqliteBroker(
    SqliteQueues,
    SqliteInspector,
    SqliteRepairer,
    SqliteProducers,
    SqliteFileOrders,
    SqliteCatalog,
    SqliteSchedules,
    SqliteBatches,
):
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

    def check_present(self) -> None:
        """Raises BrokerRemoved if the database file was deleted or replaced."""
        self._store.database.check_present()

    def close(self) -> None:
        self._store.close()
