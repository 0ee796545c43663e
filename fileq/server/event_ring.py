"""The newest events of a server, by their numbers. A stream holds only the number of its next event.

So a stream that does not read costs no memory: what it has not read when the ring is full is dropped for it, and the
numbers say how many events that were. Belongs to the event loop; does no I/O.
"""

from __future__ import annotations

import re
import secrets

from msgspec import Struct

RING_EVENTS = 10_000
RING_BYTES = 32 << 20
RESET = "reset"
FIRST = 1  # so that the id before the first event is a number too
_EVENT_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})")


class LiveEvent(Struct, frozen=True):
    """One event of the broker. `name` is with a dot, such as job.completed; `data` is its JSON in one line.

    The name `reset` stands for events that may be missing, and goes to every stream."""

    number: int
    name: str
    data: bytes
    job_id: str = ""
    type: str | None = None
    queue: str = ""
    path: str = ""


class EventRing:
    """The events from `oldest` up to, but not including, `head`. `mark` tells the rings of two servers apart."""

    def __init__(self, size: int = RING_EVENTS, bytes_max: int = RING_BYTES) -> None:
        self.mark = secrets.token_hex(4)
        self.oldest = self.head = FIRST
        self._size = size
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: list[LiveEvent | None] = [None] * size

    def add(self, event: LiveEvent) -> None:
        """Numbers only grow. A gap means that events were lost before they got here: all before it are dropped."""
        while self.oldest < self.head and (
            event.number != self.head
            or self.head - self.oldest >= self._size
            or self._bytes + len(event.data) > self._bytes_max
        ):
            self._drop_oldest()
        if event.number != self.head:
            self.oldest = event.number
        self._events[event.number % self._size] = event
        self._bytes += len(event.data)
        self.head = event.number + 1

    def __getitem__(self, number: int) -> LiveEvent:
        event = self._events[number % self._size]
        assert event is not None
        assert event.number == number
        return event

    def id_of(self, number: int) -> str:
        """The id of an event for Last-Event-ID."""
        return f"{self.mark}-{number}"

    def position_after(self, id: str) -> int | None:
        """The number after the event with this id; None if events after it are no longer here."""
        found = _EVENT_ID.fullmatch(id)
        if found is None or found[1] != self.mark:
            return None
        number = int(found[2]) + 1
        return number if self.oldest <= number <= self.head else None

    def _drop_oldest(self) -> None:
        at = self.oldest % self._size
        event = self._events[at]
        self._bytes -= len(event.data) if event is not None else 0
        self._events[at] = None
        self.oldest += 1
