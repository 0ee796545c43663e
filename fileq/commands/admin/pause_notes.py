"""Who paused a queue, and when: a note for others, beside the pause itself. Decides nothing: a queue without a note may
be paused, because a program or an older release paused it.

A note is written after its queue was paused and removed before it is resumed, so a kill -9 leaves no note of a pause
that has ended, and at most a pause without a note. Notes are documents of the catalog, by the name of the queue.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import Catalog, is_name
from fileq.core.job import stamp

KIND = "pauses"


class PauseNote(Struct, frozen=True):
    by: str
    at: str


def pause_notes(catalog: Catalog) -> dict[str, PauseNote]:
    """By queue. A note that can't be read is left out. One round trip."""
    found = {}
    for name, document in catalog.documents(KIND).items():
        try:
            found[name] = msgspec.json.decode(document.body, type=PauseNote)
        except msgspec.DecodeError:
            continue
    return found


def write_note(catalog: Catalog, queue: str, by: str, now_ms: int) -> None:
    """A queue whose name can't be that of a document gets none."""
    if is_name(queue):
        catalog.put_document(KIND, queue, msgspec.json.encode(PauseNote(by, stamp(now_ms) or "")))


def remove_note(catalog: Catalog, queue: str) -> None:
    if is_name(queue):
        catalog.remove_document(KIND, queue)
