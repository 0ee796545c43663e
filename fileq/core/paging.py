"""Works through a long list part by part. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar


class Paged(Protocol):
    @property
    def next_cursor(self) -> str | None:
        """Where the next page begins; "" or None at the end."""
        ...


T = TypeVar("T")
PageT = TypeVar("PageT", bound=Paged)


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def pages(read: Callable[[str], PageT]) -> Iterator[PageT]:
    """Every page: `read` gets its cursor, "" for the first. A page is read when the caller asks for it."""
    page = read("")
    yield page
    while page.next_cursor:
        page = read(page.next_cursor)
        yield page
