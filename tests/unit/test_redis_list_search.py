"""Looking for elements in a list that changes while it is read, page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fileq.brokers.redis.list_search import OVERLAP, PAGE, look_for


class ChangingList:
    """Stands in for the store: one list, changed after its first page was read."""

    def __init__(self, change: Callable[[list[bytes]], object] = lambda elements: None) -> None:
        self.elements = [b"%d" % i for i in range(3 * PAGE)]
        self._change = change
        self._pages_read = 0

    def call(self, command: str, key: str, *args: int) -> Any:
        if command == "LLEN":
            return len(self.elements)
        page = self.elements[args[0] : args[1] + 1]
        self._pages_read += 1
        if self._pages_read == 1:
            self._change(self.elements)
        return page


def remove_many(elements: list[bytes]) -> None:
    del elements[: 5 * OVERLAP]


def remove_few(elements: list[bytes]) -> None:
    del elements[: OVERLAP // 2]


def push(elements: list[bytes]) -> None:
    elements[:0] = [b"new %d" % i for i in range(PAGE // 2)]


def claim(elements: list[bytes]) -> None:
    del elements[-PAGE // 2 :]


def look(elements: Any, *raws: bytes) -> Any:
    return look_for(elements, "queue", raws)


def test_what_is_there_is_seen_and_what_is_not_there_is_absent() -> None:
    last = b"%d" % (3 * PAGE - 1)
    seen = look(ChangingList(), b"0", last, b"other")
    assert seen.positions == {b"0": 0, last: 3 * PAGE - 1}
    assert seen.absent == {b"other"}


@pytest.mark.parametrize("change", [remove_many, remove_few, push, claim])
def test_an_element_is_never_skipped(change: Callable[[list[bytes]], object]) -> None:
    """Whatever the other programs do at the ends of the list, and if they remove elements near its head."""
    for number in (PAGE - OVERLAP, PAGE, PAGE + 1, PAGE + 3 * OVERLAP, PAGE + 6 * OVERLAP):
        assert not look(ChangingList(change), b"%d" % number, b"other").absent - {b"other"}


def test_a_list_that_never_holds_still_proves_nothing() -> None:
    changing: Any = ChangingList()
    pages = iter(range(10**6))
    changing.call = lambda command, *args: 9_999 if command == "LLEN" else [b"%d" % next(pages) for _ in range(PAGE)]
    assert look(changing, b"other").absent == frozenset()
