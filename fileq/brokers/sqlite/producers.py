"""The SQLite broker's registry of producers: producer_registry.ProducerRegistry over a SqliteStore.

Leases run on the monotonic clock, which no step of the wall clock changes. After a reboot every lease has ended.
"""

from __future__ import annotations

import sqlite3

import msgspec

from fileq.brokers.producer_types import ProducerInfo, ProducerView
from fileq.brokers.sqlite.store import SqliteStore


class SqliteProducers:
    _store: SqliteStore

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        with self._store.unit_of_work() as work:
            ended = "DELETE FROM producers WHERE boot != ? OR alive_until_ms <= ?"
            work.db.execute(ended, (work.boot, work.monotonic_ms))
            report = (id, msgspec.json.encode(info), work.boot, work.monotonic_ms + ttl_ms)
            work.db.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", report)

    def remove_producer(self, id: str) -> None:
        with self._store.unit_of_work() as work:
            work.db.execute("DELETE FROM producers WHERE id = ?", (id,))

    def producers(self) -> list[ProducerView]:
        with self._store.snapshot() as (db, _):
            return read_producers(db, self._store)


def read_producers(db: sqlite3.Connection, store: SqliteStore) -> list[ProducerView]:
    sql = "SELECT id, info FROM producers WHERE boot = ? AND alive_until_ms > ? ORDER BY id"
    living = db.execute(sql, (store.database.boot, store.monotonic()))
    return [ProducerView(id, msgspec.json.decode(info, type=ProducerInfo)) for id, info in living]
