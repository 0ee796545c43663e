"""A subscription to events within one process."""

from __future__ import annotations

import queue
from collections.abc import Callable


class MemorySubscription:
    """Implements protocol.Subscription. Unbounded: events are kept until they are read."""

    def __init__(self, on_close: Callable[[MemorySubscription], None]) -> None:
        self._on_close = on_close
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, event: bytes) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        self._on_close(self)
