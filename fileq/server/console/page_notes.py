"""What people noted, for the pages that show it: actions on jobs, pauses with their reasons, acknowledged causes. Only
reads: the notes of a page come in one round trip, however many kinds of them it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fileq.brokers.catalog import Document
from fileq.commands.acknowledgements import KIND as ACKNOWLEDGEMENTS
from fileq.commands.acknowledgements import Acknowledgement, acknowledgements_in
from fileq.commands.action_log import KIND as ACTIONS
from fileq.commands.action_log import LoggedAction, actions_in
from fileq.commands.admin.pause_notes import HISTORIES, NOTES, PastPause, PauseNote, notes_in, past_pauses_in
from fileq.commands.upload_notes import KIND as UPLOADS
from fileq.server.console.page import PageRequest
from fileq.server.console.rendering import moment

REASON_SHOWN = 200  # characters
__all__ = [
    "ACKNOWLEDGEMENTS",
    "ACTIONS",
    "HISTORIES",
    "NOTES",
    "UPLOADS",
    "PageNotes",
    "pause_words",
    "read_notes",
    "why",
]


class PageNotes(Struct, frozen=True):
    """What was not asked for is empty. `actions` are the newest first; `pauses` are those that last, by queue, and
    `past_pauses` the last ones that have ended; `acknowledgements` are by fingerprint,
    and `uploads` are documents of upload_notes.py."""

    actions: Sequence[LoggedAction]
    pauses: Mapping[str, PauseNote]
    past_pauses: Mapping[str, tuple[PastPause, ...]]
    acknowledgements: Mapping[str, Acknowledgement]
    uploads: Mapping[str, Document]


def read_notes(request: PageRequest, kinds: Iterable[str]) -> PageNotes:
    """One round trip; none without kinds."""
    wanted = [*kinds]
    found = dict(zip(wanted, request.services.broker.documents_of(wanted), strict=True)) if wanted else {}
    known = {name: request.shown(one) for name, one in acknowledgements_in(found.get(ACKNOWLEDGEMENTS, {})).items()}
    if ACKNOWLEDGEMENTS in found:
        request.services.known_causes = known
    return PageNotes(
        actions_in(found.get(ACTIONS, {})),
        notes_in(found.get(NOTES, {})),
        past_pauses_in(found.get(HISTORIES, {})),
        known,
        found.get(UPLOADS, {}),
    )


def pause_words(note: PauseNote) -> str:
    """Since when, by whom and why, as a part of a sentence."""
    return f"since {moment(note.at)} by {note.by}{why(note.reason)}"


def why(reason: str) -> str:
    """The reason after a colon; "" if there is none."""
    text = " ".join(reason.split())
    return f": {text if len(text) <= REASON_SHOWN else f'{text[: REASON_SHOWN - 1]}…'}" if text else ""
