"""The ledger's part of the SQLite broker's hot path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.known_versions import newest_versions
from fileq.brokers.place_pages import LedgerPage, ledger_page_of, path_of_cursor
from fileq.brokers.sqlite.ledger_rows import decode_ledger_entry
from fileq.brokers.sqlite.rows import find_ledger_entries
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.brokers.types import LedgerEntry

_LEDGER_PAGE = 500


class SqliteLedger:
    _store: SqliteStore

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self._store.snapshot() as (db, _):
            found = find_ledger_entries(db, paths)
        return [found.get(path) for path in paths]

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        return newest_versions(self, versions)

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

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        if not changes:
            return []
        with self._store.unit_of_work() as work:
            return [_update_entry(work, *change) for change in changes]


def _update_entry(work: UnitOfWork, path: bytes, was: LedgerEntry, becomes: LedgerEntry | None) -> bool:
    if work.ledger.entry(path) != was:
        return False
    work.ledger.replace(path, becomes)
    return True
