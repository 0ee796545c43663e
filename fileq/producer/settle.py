"""Waits until files stand still. Holds only those that do not yet; the clock is given, nothing is read.

A file has settled when its size, its mtime and its inode were the same for its settle time: short after a close or
a move, longer when nobody said that the writer was done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from msgspec import Struct

from fileq.producer.scan import Found

MOST = 50_000
Look = Callable[[bytes], Found | None]


class _Waiting(Struct):
    seen: Found
    due_s: float


class Settling:
    """Files on their way to standing still, by path. It has an end: whoever is turned away comes again with the
    next scan."""

    def __init__(self, after_close_s: float, unclosed_s: float, most: int = MOST) -> None:
        self._after_close_s = after_close_s
        self._unclosed_s = unclosed_s
        self._most = most
        self._waiting: dict[bytes, _Waiting] = {}
        self._due: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, path: bytes) -> bool:
        return path in self._waiting

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._most

    def offer(self, found: Found, now_s: float, *, is_closed: bool) -> bool:
        """A file was seen, or its writer closed it or moved it in; a change starts its time anew. False: no room."""
        waiting = self._waiting.get(found.path)
        if waiting is None and self.is_full:
            return False
        if waiting is None or is_closed or waiting.seen.stillness != found.stillness:
            due_s = now_s + (self._after_close_s if is_closed else self._unclosed_s)
            self._waiting[found.path] = _Waiting(found, due_s)
            heapq.heappush(self._due, (due_s, found.path))
        return True

    def next_due_s(self) -> float | None:
        """When the next file may have settled; those that were postponed meanwhile are skipped."""
        while self._due:
            due_s, path = self._due[0]
            waiting = self._waiting.get(path)
            if waiting is not None and waiting.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return None

    def take_settled(self, now_s: float, most: int, look: Look) -> tuple[list[Found], list[Found]]:
        """A second look at those whose time is over: files that stand still leave, and so do those that are gone;
        files that changed wait again, as unclosed, unless room is scarce, and are told of."""
        settled: list[Found] = []
        restless: list[Found] = []
        for _ in range(most):
            due_s = self.next_due_s()
            if due_s is None or due_s > now_s:
                break
            path = self._due[0][1]
            found = look(path)
            heapq.heappop(self._due)
            was_full, before = self.is_full, self._waiting.pop(path).seen
            if found is None:
                continue
            if found.stillness == before.stillness:
                settled.append(found)
                continue
            restless.append(found)
            if not was_full:
                self.offer(found, now_s, is_closed=False)
        return settled, restless
