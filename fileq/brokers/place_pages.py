"""What a broker promises about pages of a place, for lists. The rules of protocol.py hold here.

A cursor is the broker's own text: callers keep it and give it back unchanged. This module has the form that brokers use
which know only offsets: an offset, and a digest of the job before it, to find that job again after the list has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.types import LedgerEntry, Record, WorkerView
from fileq.core.errors import BrokerError
from fileq.core.job import State

PROCESSING = "processing"
NEWEST_FIRST = ("dead_letter", "completed", "cancelled")
PAGE_BYTES = 16 << 20  # or one job
REACH = 1000  # how far from its former offset the last job of a page is looked for
_DIGESTED = 512  # bytes of a job: its id is among them


class Page(Struct, frozen=True):
    """Some jobs of a place in their order, and how many it held at that moment. `next_cursor` is "" at the end."""

    raws: tuple[bytes, ...]
    next_cursor: str
    total: int


class LedgerPage(Struct, frozen=True):
    """Some entries of the ledger, by path. `scanned` is about how many were looked at."""

    entries: tuple[tuple[bytes, LedgerEntry], ...]
    next_cursor: str
    scanned: int


Standing: TypeAlias = tuple[State, int]  # of a job, with the time when it was created in ms


class PlacePages(Protocol):
    """For lists. Never on the hot path."""

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        """The next jobs of a place after a cursor; from the beginning with "". Only reads.

        The place is a queue or `scheduled` (what comes out next is first), `dead_letter`, `completed` or `cancelled`
        (the newest is first), or `processing` (by slot; registered slots only). A page has at most `size` jobs, and
        fewer if they have more than PAGE_BYTES together. Near the beginning of a place the cost does not depend on its
        length. Raises BrokerError for an unknown place or a cursor that is none of this place.

        While nothing moves, following the cursors returns every job once. A page continues after the last job of the
        page before it: jobs that arrive at the other end or leave hide no other job. Jobs that come before that one
        later are not returned. If that job itself has left, or has moved by more than REACH, a broker without positions
        continues at its former offset: some jobs may then be missed or returned twice."""

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        """The records without what may be long, for lists that compare many. Only reads.

        `raw`, `result`, `attempts`, `after`, `follow_ups` and `outputs` are empty, `queued` is 0 and `waits_for` and
        `unique_key` are ""; everything else is as in records()."""

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        """The state and the time of creation in each record, for counts of many files. Only reads."""

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        """The fingerprint in each record, for groups of dead jobs, which compare many; "" if there is none. Only
        reads."""

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        """The next entries of the ledger whose paths start with `under`, in the broker's own order. Only reads.

        Looks at about `size` entries, so a page may be empty before the end, which is a cursor of "". Following the
        cursors returns every entry that stays, and perhaps one twice. Raises BrokerError for a wrong cursor."""


def ledger_entries(page_after: Callable[[bytes, str], LedgerPage], under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
    """All entries of the pages of ledger_page()."""
    page = page_after(under, "")
    yield from page.entries
    while page.next_cursor:
        page = page_after(under, page.next_cursor)
        yield from page.entries


class Offset(Struct, frozen=True):
    """A cursor of a broker without positions."""

    at: int = 0
    digest: str = ""  # of the job before it; "" at the beginning

    def after(self, start: int, raws: Sequence[bytes], total: int) -> str:
        """The cursor of the page after these jobs, which begin at `start`."""
        end = start + len(raws)
        return f"{end}.{digest_of(raws[-1])}" if raws and end < total else ""


def offset_of(cursor: str) -> Offset:
    if not cursor:
        return Offset()
    at, _, digest = cursor.partition(".")
    if not (at.isascii() and at.isdigit() and len(at) < 16 and len(digest) == 16 and digest.isalnum()):
        raise wrong_cursor(cursor)
    return Offset(int(at), digest)


def digest_of(raw: bytes) -> str:
    """As in redis/lua/page.lua."""
    import hashlib  # it loads OpenSSL, and commands should start fast

    return hashlib.sha1(b"%d:" % len(raw) + raw[:_DIGESTED], usedforsecurity=False).hexdigest()[:16]


def within_bytes(raws: Iterable[bytes]) -> list[bytes]:
    """The first ones, as many as have PAGE_BYTES together; at least one."""
    kept: list[bytes] = []
    size = 0
    for raw in raws:
        size += len(raw)
        if kept and size > PAGE_BYTES:
            break
        kept.append(raw)
    return kept


def page_of_slots(views: Iterable[WorkerView], cursor: str, size: int) -> Page:
    """A page of `processing`. The cursor is the id of the last slot."""
    holding = sorted((view.slot, view.raw) for view in views if view.raw)
    left = [(slot, raw) for slot, raw in holding if slot > cursor]
    raws = within_bytes(raw for _, raw in left[:size])
    next_cursor = left[len(raws) - 1][0] if 0 < len(raws) < len(left) else ""
    return Page(tuple(raws), next_cursor, len(holding))


def outline_of(record: Record) -> Record:
    """For brokers that read the whole record anyway."""
    return replace(
        record,
        raw=b"",
        result=b"",
        attempts=(),
        after=(),
        follow_ups=(),
        outputs=(),
        queued=0,
        waits_for="",
        unique_key="",
        deferrals_ms=(0, 0),
    )


def check_page(place: str, size: int, queues: Sequence[str]) -> None:
    places = (*queues, "scheduled", PROCESSING, *NEWEST_FIRST)
    if place not in places:
        raise BrokerError(f"no place is named {place!r}; known: {', '.join(places)}")
    if size < 1:
        raise BrokerError(f"size is {size}; a page has at least 1 job")


def wrong_cursor(cursor: str) -> BrokerError:
    return BrokerError(f"cursor {cursor!r} does not belong to this list; begin without a cursor")
