"""The catalog on Redis: catalog.Catalog over a RedisStore. A document is its revision, a line break, and its body."""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.redis.scripts import PUT_WHEN_FULL
from fileq.brokers.redis.store import RedisStore


class RedisCatalog:
    """catalog.Catalog on Redis."""

    _store: RedisStore

    def documents(self, kind: str) -> dict[str, Document]:
        return self.documents_of([kind])[0]

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        for kind in kinds:
            check_name("kind", kind)
        replies = self._store.calls([("HGETALL", self._store.keys.documents(kind)) for kind in kinds])
        return [
            {name.decode(): _as_document(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
            for flat in replies
        ]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        wanted = "" if expected is None else expected
        script = PUT_WHEN_FULL if frees_memory else "put_document"
        is_done, revision = self._store.run(script, self._keys(kind), (kind, name, body, wanted))
        if not is_done:
            raise conflict(kind, name, expected or 0, revision)
        return int(revision)

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        wanted = "" if expected is None else expected
        answer, revision = self._store.run("remove_document", self._keys(kind), (kind, name, wanted))
        if answer == 0:
            raise conflict(kind, name, expected or 0, revision)
        return bool(answer == 1)

    def catalog_revision(self, kind: str) -> int:
        check_name("kind", kind)
        return int(self._store.call("HGET", self._store.keys.catalog_revisions, kind) or 0)

    def _keys(self, kind: str) -> tuple[str, str]:
        return self._store.keys.documents(kind), self._store.keys.catalog_revisions


def _as_document(value: bytes) -> Document:
    revision, _, body = value.partition(b"\n")
    return Document(body, int(revision))
