"""The SQLite broker's catalog: catalog.Catalog over a SqliteStore. Every change is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork


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
