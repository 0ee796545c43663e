"""The memory broker: the rulebook over dictionaries, and its lists by pages. Everything is lost with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from operator import itemgetter

from fileq.brokers.batches import MEMBERS_PAGE, BatchPage, MemberPage
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PROCESSING,
    LedgerPage,
    Page,
    check_page,
    ledger_page_of,
    offset_of,
    page_of_slots,
    path_of_cursor,
    start_after,
    within_bytes,
)
from fileq.brokers.rules import RulebookBroker
from fileq.brokers.rules.batches import with_running
from fileq.brokers.rules.rows import MemberState
from fileq.brokers.types import LedgerEntry
from fileq.config import Config
from fileq.core.batch import Batch, BatchState
from fileq.core.finding import Finding


class MemoryBroker(RulebookBroker):
    _store: MemoryStore
    kind = "memory"
    where = "this process"

    def __init__(self, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._store = MemoryStore(config, clock=clock)

    @property
    def store(self) -> MemoryStore:
        """The back door of tests: what another program or a failover can do to a broker's contents."""
        return self._store

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Finds nothing: this broker depends on nothing outside its process."""
        return []

    def close(self) -> None:
        """Does nothing: no resource outlives the process."""

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        with self._store.lock:
            raws = self._store.list_of(place)
        for start in range(0, len(raws), size):
            yield raws[start : start + size]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        check_page(place, size, self._store.queue_names)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        with self._store.lock:
            raws = self._store.list_of(place)
        if place in NEWEST_FIRST:
            raws.reverse()
        last = offset_of(cursor)
        start = start_after(raws, last)
        found = within_bytes(raws[start : start + size])
        return Page(tuple(found), last.after(start, found, len(raws)), len(raws))

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        with self._store.reading() as work:
            found = [id for id, record in self._store.records.items() if not work.has_expired(record)]
        for start in range(0, len(found), size):
            yield found[start : start + size]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        with self._store.lock:
            return iter([(path, entry) for path, entry in self._store.ledger.items() if path.startswith(under)])

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        last = path_of_cursor(cursor)
        with self._store.lock:
            found = ((path, entry) for path, entry in self._store.ledger.items() if path.startswith(under))
            return ledger_page_of(nsmallest(size, (one for one in found if one[0] > last), itemgetter(0)), size)

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        with self._store.reading() as work:
            found = [batch for id in self._store.batches if (batch := work.batches.find(id)) is not None]
            if unfinished:
                found = [batch for batch in found if batch.state is not BatchState.FINISHED]
            found = [batch for batch in found if not cursor or _page_key(batch) < cursor]
            found.sort(key=_page_key, reverse=True)
            page = tuple(filter(None, with_running(work, [*found[:limit]])))
            return BatchPage(page, _page_key(found[limit - 1]) if len(found) > limit else "")

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.UNFINISHED, cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._members(id, MemberState.DEAD, cursor, limit)

    def _members(self, id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        with self._store.reading() as work:
            if work.batches.find(id) is None:
                return MemberPage(())
            marked = (r.id for r in self._store.records.values() if (r.batch, r.member) == (id, state))
            unmarked = (member for was, member in self._store.unmarked.get(id, ()) if was is state)
            found = sorted(member for member in {*marked, *unmarked} if member > cursor)
            return MemberPage(tuple(found[:limit]), found[limit - 1] if len(found) > limit else "")


def _page_key(batch: Batch) -> str:
    return f"{batch.created_ms:020d}.{batch.id}"
