"""Reads a list page by page, from its tail (the old end) to its head, while other programs change it. Only reads.

Elements keep their order. So a page that holds the newest elements of the page before it continues that page, however
far the list has moved. Claims and removals make pages overlap less; then the walk steps back until they overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fileq.brokers.redis.store import RedisStore
from fileq.core.errors import BrokerUnavailable

PAGE = 2000
OVERLAP = 200
FIRST_PAGE = 8  # elements: how long they are is not known yet
PAGE_BYTES = 1 << 24  # or one element
_IN_A_ROW = 3  # elements that show where a page continues: one alone may be a copy with the same bytes
_STEPS_BACK = 200


class ListWalk:
    """Sees every element that is in the list during the whole walk; of the others some, and some twice.

    `read` returns the next elements, and `move_on` must follow it. `offset` is where they begin, counted from the
    tail."""

    def __init__(self, store: RedisStore, key: str) -> None:
        self._store = store
        self._key = key
        self._newest: Sequence[bytes] = ()  # elements that were read and not removed, the newest last
        self._page: list[bytes] = []
        self._is_at_head = False
        self._steps_back = 0
        self.offset = 0

    def read(self) -> list[bytes]:
        """The next elements, oldest first; empty after the head. BrokerUnavailable if the list changes too fast."""
        self._page = []
        while not self._page and not self._is_at_head:
            start, known, elements = self._read_overlapping()
            self._is_at_head = len(elements) < PAGE + OVERLAP
            self.offset, self._page = start + known, elements[known:]
        return self._page

    def _read_overlapping(self) -> tuple[int, int, list[bytes]]:
        """Elements, where they begin, and how many of them are known. Steps back until some are, or to the tail."""
        start = max(0, self.offset - OVERLAP)
        while self._steps_back <= _STEPS_BACK:
            elements = read_from_tail(self._store, self._key, start, PAGE + OVERLAP)
            known = _continuation(elements, self._newest)
            if known is not None or start == 0:
                return start, known or 0, elements
            start = max(0, start - PAGE)
            self._steps_back += 1
        raise changes_too_fast(self._key)

    def move_on(self, removed: Collection[int]) -> None:
        """`removed` are the indexes in the page of elements that the caller has removed from the list."""
        kept = [raw for i, raw in enumerate(self._page) if i not in removed] if removed else self._page
        self._newest = (*self._newest, *kept[-OVERLAP:])[-OVERLAP:]
        self.offset += len(kept)


def _continuation(elements: Sequence[bytes], newest: Sequence[bytes]) -> int | None:
    """Where elements begin that are newer than `newest`; None if that does not show."""
    if not newest:
        return 0
    row = min(_IN_A_ROW, len(newest))
    ends: dict[bytes, list[int]] = {raw: [] for raw in newest}
    for end, raw in enumerate(elements, start=1):
        if raw in ends and end >= row:
            ends[raw].append(end)
    for newest_end in range(len(newest), row - 1, -1):
        wanted = tuple(newest[newest_end - row : newest_end])
        for end in ends[wanted[-1]]:
            if tuple(elements[end - row : end]) == wanted:
                return end
    return None


def read_from_tail(store: RedisStore, key: str, offset: int, size: int) -> list[bytes]:
    """Up to `size` elements from this offset on, counted from the tail; oldest first."""
    return list(reversed(store.call("LRANGE", key, -(offset + size), -(offset + 1))))


def list_pages(store: RedisStore, key: str, size: int) -> Iterator[list[bytes]]:
    """All elements, oldest first. The caller may remove elements of a page before it takes the next one.

    A page has at most `size` elements, and about PAGE_BYTES if its elements are as long as those of the last page.
    While other programs change the list, some may be missed or returned twice."""
    offset, page = 0, list[bytes]()
    wanted = min(size, store.page_sizes.get(key, FIRST_PAGE))
    while True:
        elements = read_from_tail(store, key, offset, len(page) + wanted)
        is_read = frozenset(page)
        kept = next((i for i, raw in enumerate(elements) if i == len(page) or raw not in is_read), len(elements))
        offset, page = offset + kept, elements[kept : kept + wanted]
        is_last = len(page) < wanted
        if page:
            fitting = PAGE_BYTES * len(page) // (sum(map(len, page)) or 1)
            wanted = min(size, 4 * wanted, max(1, fitting))
            store.last_offsets[key], store.page_sizes[key] = offset, wanted
            yield page
        if is_last:
            return


def changes_too_fast(key: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"the list {key} changes faster than jobs can be found in it; repeat the command")
