"""The memory broker: the rulebook over dictionaries, and its lists by pages. Everything is lost with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PROCESSING,
    Page,
    check_page,
    offset_of,
    page_of_slots,
    start_after,
    within_bytes,
)
from fileq.brokers.rules import RulebookBroker
from fileq.config import Config
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
