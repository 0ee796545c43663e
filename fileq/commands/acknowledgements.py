"""Acknowledged groups of dead jobs: an operator knows the cause, and says so with a note. Documents of the catalog, by
the fingerprint of the group. Changes no job.

A kill -9 leaves each document as it was or as it should be.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct

from fileq.brokers.catalog import Catalog, Table
from fileq.core.job import parse_time, stamp

ACKNOWLEDGEMENTS_MAX = 1_000  # the oldest ones are removed: most of their groups are gone
NOTE_LENGTH = 1_000
_FINGERPRINT = re.compile("[0-9a-f]{12}")
GroupState: TypeAlias = Literal["new", "acknowledged", "again"]


class Acknowledgement(Struct, frozen=True):
    """Who acknowledged the group with this fingerprint, and when. It comes back with a job that dies later."""

    fingerprint: str
    note: str
    by: str
    at: str


ACKNOWLEDGEMENTS = Table[Acknowledgement]("acknowledgements", Acknowledgement)


def is_fingerprint(text: str) -> bool:
    return _FINGERPRINT.fullmatch(text) is not None


def group_state(known: Acknowledgement | None, last_death: str | None) -> GroupState:
    """`last_death` is when the newest job of the group died, in RFC 3339; None if that is unknown."""
    if known is None:
        return "new"
    died, acknowledged = parse_time(last_death or ""), parse_time(known.at)
    is_later = died is not None and acknowledged is not None and died > acknowledged
    return "again" if is_later else "acknowledged"


def acknowledge_group(catalog: Catalog, fingerprint: str, note: str, by: str, now_ms: int) -> Acknowledgement:
    """Replaces the one before. `fingerprint` is a whole one."""
    made = Acknowledgement(fingerprint, note, by, stamp(now_ms) or "")
    ACKNOWLEDGEMENTS.put(catalog, fingerprint, made)
    known = ACKNOWLEDGEMENTS.all(catalog).values()
    for old in sorted(known, key=lambda one: one.at, reverse=True)[ACKNOWLEDGEMENTS_MAX:]:
        ACKNOWLEDGEMENTS.remove(catalog, old.fingerprint)
    return made
