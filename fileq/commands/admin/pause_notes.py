"""Who paused a queue, when and why, and its last pauses: notes for others, beside the pause itself. Decides nothing: a
queue without a note may be paused, because a program or an older release paused it.

A note is written after its queue was paused. Before the queue is resumed, the pause is added to the queue's history and
its note is removed. So a kill -9 leaves no note of a pause that has ended, and at most a pause without a note; the
same pause is never twice in the history. Notes and histories are documents of the catalog, by the name of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import Catalog, Document, is_name, readable
from fileq.core.errors import BrokerError, Conflict
from fileq.core.job import stamp

NOTES, HISTORIES = "pauses", "past-pauses"  # kinds of documents
REASON_LENGTH = 1_000
PAST_MAX, PAST_TEXT_MAX = 20, 200  # pauses in the history of a queue; characters of each of their texts
_TRIES = 5


class PauseNote(Struct, frozen=True):
    """`reason` is "" if none was given."""

    by: str
    at: str
    reason: str = ""


class PastPause(Struct, frozen=True):
    """A pause that has ended. Its texts are shortened."""

    start: str
    end: str
    by: str
    reason: str = ""


def pause_notes(catalog: Catalog) -> dict[str, PauseNote]:
    """By queue. One round trip."""
    return notes_in(catalog.documents(NOTES))


def notes_in(documents: Mapping[str, Document]) -> dict[str, PauseNote]:
    """A note that can't be read is left out."""
    return readable(documents, PauseNote)


def past_pauses_in(documents: Mapping[str, Document]) -> dict[str, tuple[PastPause, ...]]:
    """By queue, the oldest first."""
    return readable(documents, tuple[PastPause, ...])


def write_note(catalog: Catalog, queue: str, note: PauseNote) -> None:
    """A queue whose name can't be that of a document gets none."""
    if is_name(queue):
        catalog.put_document(NOTES, queue, msgspec.json.encode(note))


def end_note(catalog: Catalog, queue: str, note: PauseNote | None, now_ms: int) -> None:
    """Adds the pause to the history, then removes its note. A full broker takes no history: the queue is resumed all
    the same."""
    if not is_name(queue):
        return
    if note is not None:
        with suppress(BrokerError):
            _remember(catalog, queue, PastPause(note.at, stamp(now_ms) or "", _short(note.by), _short(note.reason)))
    catalog.remove_document(NOTES, queue)


def _remember(catalog: Catalog, queue: str, ended: PastPause) -> None:
    """Another process may add the same pause at this moment: then the one that was first stays."""
    for _ in range(_TRIES):
        documents = catalog.documents(HISTORIES)
        known = past_pauses_in(documents).get(queue, ())
        if any(one.start == ended.start for one in known):
            return
        revision = documents[queue].revision if queue in documents else 0
        try:
            catalog.put_document(HISTORIES, queue, msgspec.json.encode((*known, ended)[-PAST_MAX:]), revision)
            return
        except Conflict:
            continue


def _short(text: str) -> str:
    return text if len(text) <= PAST_TEXT_MAX else f"{text[: PAST_TEXT_MAX - 1]}…"
