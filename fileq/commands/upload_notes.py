"""Who uploaded which file: one document of the catalog for each upload. Decides nothing.

The page of a file reads it. A document is written after its upload, so a kill -9 leaves at most an upload without one;
the audit is the complete list. The newest ones are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fileq.brokers.catalog import CappedLog, Catalog, Document, entry_name
from fileq.core.job import stamp

UPLOADS_MAX = 200  # all of them are read at once


class UploadNote(Struct, frozen=True):
    path: str
    by: str
    at: str


UPLOADS = CappedLog[UploadNote]("uploads", UploadNote, UPLOADS_MAX)


def note_upload(catalog: Catalog, path: str, by: str, now_ms: int) -> None:
    UPLOADS.add(catalog, entry_name(now_ms), UploadNote(path, by, stamp(now_ms) or ""))


def last_upload(path: str, documents: Mapping[str, Document]) -> UploadNote | None:
    """That of this file, among the documents of the kind."""
    return next((note for note in UPLOADS.newest(documents) if note.path == path), None)
