"""Works through a long list part by part. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar


class Paged(Protocol):
    @property
    def next_cursor(self) -> str:
        """Where the next page begins; "" at the end."""
        ...


T = TypeVar("T")
PageT = TypeVar("PageT", bound=Paged)


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def pages(read: Callable[[str], PageT]) -> Iterator[PageT]:
    """Every page: `read` gets its cursor, "" for the first. A page is read when the caller asks for it."""
    cursor = ""
    while True:
        page = read(cursor)
        yield page
        if not (cursor := page.next_cursor):
            return
