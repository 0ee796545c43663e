"""Reading a list page by page while it changes: no element that stays in the list is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fileq.brokers.redis.list_search import OVERLAP, PAGE, ListWalk, list_pages
from fileq.core.errors import BrokerUnavailable

Change = Callable[[list[bytes]], object]


class ChangingList:
    """Stands in for the store: one list, head first, changed after its first page was read."""

    def __init__(self, change: Change = lambda elements: None, elements: list[bytes] | None = None) -> None:
        self.elements = elements or [b"%d" % i for i in range(3 * PAGE)]
        self.last_offsets: dict[str, int] = {}
        self.page_sizes: dict[str, int] = {}
        self._change = change
        self._pages_read = 0

    def call(self, command: str, key: str, first: int, last: int) -> list[bytes]:
        assert command == "LRANGE"
        page = self.elements[first : last + 1 or None]
        self._pages_read += 1
        if self._pages_read == 1:
            self._change(self.elements)
        return page


def walked(changing: Any) -> list[bytes]:
    walk, found = ListWalk(changing, "queue"), []
    while page := walk.read():
        found += page
        walk.move_on(())
    return found


def claim(count: int) -> Change:
    return lambda elements: elements.__delitem__(slice(-count, None))


def give_back(elements: list[bytes]) -> None:
    elements += [b"given back %d" % i for i in range(PAGE)]


def push(elements: list[bytes]) -> None:
    elements[:0] = [b"new %d" % i for i in range(PAGE)]


def remove_every_third(elements: list[bytes]) -> None:
    del elements[::3]


def test_a_list_that_stays_as_it_is_is_read_once_oldest_first() -> None:
    changing = ChangingList()
    assert walked(changing) == changing.elements[::-1]


@pytest.mark.parametrize(
    "change",
    [claim(1), claim(OVERLAP), claim(5 * OVERLAP), claim(2 * PAGE), give_back, push, remove_every_third],
    ids=["one claim", "claims", "many claims", "most claimed", "given back", "pushed", "removed"],
)
def test_an_element_that_stays_is_never_overlooked(change: Change) -> None:
    changing = ChangingList(change)
    before = set(changing.elements)
    found = set(walked(changing))
    assert before & set(changing.elements) <= found


def test_copies_with_the_same_bytes_do_not_hide_an_element() -> None:
    elements = [b"same"] * (2 * PAGE) + [b"wanted"] + [b"same"] * (PAGE + OVERLAP)
    assert b"wanted" in walked(ChangingList(claim(1), elements))


def test_a_copy_of_the_newest_element_which_is_gone_hides_no_element() -> None:
    newest = -(PAGE + OVERLAP)  # of the first page
    elements = [b"%d" % i for i in range(3 * PAGE)]
    elements[newest - 100] = elements[newest]
    changing = ChangingList(lambda elements: elements.__delitem__(newest), elements)
    found = set(walked(changing))
    assert set(changing.elements) <= found


def test_what_the_caller_removes_does_not_move_the_others_out_of_sight() -> None:
    changing: Any = ChangingList()
    every, found = changing.elements[::-1], []
    walk = ListWalk(changing, "queue")
    while page := walk.read():
        found += page
        removed = {i for i in range(len(page)) if i % 2}
        gone = {page[i] for i in removed}
        changing.elements = [raw for raw in changing.elements if raw not in gone]
        walk.move_on(removed)
    assert found == every
    assert walk.offset == len(changing.elements)


def test_a_list_that_never_holds_still_proves_nothing() -> None:
    changing: Any = ChangingList()
    numbers = iter(range(10**7))
    changing.call = lambda *command: [b"%d" % next(numbers) for _ in range(PAGE + OVERLAP)]
    with pytest.raises(BrokerUnavailable, match="changes faster than"):
        walked(changing)


@pytest.mark.parametrize("kept", [0, 1, 2], ids=["none is kept", "all are kept", "every second one is kept"])
def test_pages_advance_only_by_what_was_kept(kept: int) -> None:
    changing: Any = ChangingList()
    every, found = changing.elements[::-1], []
    for page in list_pages(changing, "dead_letter", 500):
        found += page
        gone = {raw for i, raw in enumerate(page) if kept == 0 or i % kept}
        changing.elements = [raw for raw in changing.elements if raw not in gone]
    assert found == every
