"""Who uploaded which file: one document of the catalog for each upload. Decides nothing.

The page of a file reads it. A document is written after its upload, so a kill -9 leaves at most an upload without one;
the audit is the complete list. The newest ones are kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import Catalog, Document, readable
from fileq.core.job import stamp

KIND = "uploads"
UPLOADS_MAX = 200  # all of them are read at once
TRIM_EVERY = 16


class UploadNote(Struct, frozen=True):
    path: str
    by: str
    at: str


class UploadNotes:
    """The uploads to the servers of one broker."""

    def __init__(self, catalog: Catalog, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._written = 0

    def add(self, path: str, by: str) -> None:
        now_ms = self._now_ms()
        made = UploadNote(path, by, stamp(now_ms) or "")
        self._catalog.put_document(KIND, f"{now_ms:013d}-{secrets.token_hex(4)}", msgspec.json.encode(made))
        if self._written % TRIM_EVERY == 0:
            for name in sorted(self._catalog.documents(KIND), reverse=True)[UPLOADS_MAX:]:
                self._catalog.remove_document(KIND, name)
        self._written += 1


def last_upload(path: str, documents: Mapping[str, Document]) -> UploadNote | None:
    """That of this file, among the documents of the kind. Their names begin with the time."""
    known = readable(documents, UploadNote)
    newest_first = (known[name] for name in sorted(known, reverse=True))
    return next((note for note in newest_first if note.path == path), None)
