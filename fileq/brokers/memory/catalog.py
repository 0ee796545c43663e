"""The memory broker's catalog: catalog.Catalog over a MemoryStore."""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.memory.store import MemoryStore


class MemoryCatalog:
    _store: MemoryStore

    def documents(self, kind: str) -> dict[str, Document]:
        check_name("kind", kind)
        with self._store.lock:
            return dict(self._store.documents[kind])

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        return [self.documents(kind) for kind in kinds]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        with self._store.lock:
            was = self._store.documents[kind].get(name)
            if was is not None and was.body == body:
                return was.revision
            _check_expected(kind, name, was, expected)
            revision = self._next_revision(kind)
            self._store.documents[kind][name] = Document(body, revision)
            return revision

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        with self._store.lock:
            was = self._store.documents[kind].get(name)
            if was is None:
                return False
            _check_expected(kind, name, was, expected)
            self._next_revision(kind)
            del self._store.documents[kind][name]
            return True

    def catalog_revision(self, kind: str) -> int:
        check_name("kind", kind)
        with self._store.lock:
            return self._store.catalog_revisions[kind]

    def _next_revision(self, kind: str) -> int:
        self._store.catalog_revisions[kind] += 1
        return self._store.catalog_revisions[kind]


def _check_expected(kind: str, name: str, was: Document | None, expected: int | None) -> None:
    found = was.revision if was is not None else 0
    if expected is not None and expected != found:
        raise conflict(kind, name, expected, found)
