"""The ledger during one transaction: entries are read once, changed in memory, and written at the end of it."""

from __future__ import annotations

import sqlite3

from fileq.brokers.sqlite.ledger_rows import decode_ledger_entry, encode_ledger_entry
from fileq.brokers.types import LedgerEntry
from fileq.core.job import Version


class LedgerTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._entries: dict[bytes, LedgerEntry | None] = {}
        self._changed: set[bytes] = set()

    def entry(self, path: bytes) -> LedgerEntry | None:
        if path not in self._entries:
            found = self._db.execute("SELECT entry FROM ledger WHERE path = ?", (path,)).fetchone()
            self._entries[path] = None if found is None else decode_ledger_entry(found[0])
        return self._entries[path]

    def replace(self, path: bytes, becomes: LedgerEntry | None) -> None:
        """Replaces the entry of a path; None removes it."""
        self._entries[path] = becomes
        self._changed.add(path)

    def learn(self, version: Version, job_id: str) -> None:
        known = self.entry(version.path) or LedgerEntry()
        self.replace(version.path, known.with_version(version, job_id))

    def write(self) -> None:
        if not self._changed:
            return
        changes = [(path, self._entries[path]) for path in self._changed]
        removed = [(path,) for path, entry in changes if entry is None]
        saved = [(path, encode_ledger_entry(entry)) for path, entry in changes if entry is not None]
        if removed:
            self._db.executemany("DELETE FROM ledger WHERE path = ?", removed)
        if saved:
            self._db.executemany("INSERT OR REPLACE INTO ledger VALUES (?, ?)", saved)
