"""The SQLite broker's orders: file_orders.FileOrders over a SqliteStore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.file_orders import Order
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.core.job import State

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
