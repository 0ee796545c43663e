"""Waking and telling within one process, for the brokers that have no server to do it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable


class LocalWaiter:
    """A file descriptor that turns readable when something was pushed. `has_work` is asked when armed, so
    that a push between the last claim and arming is never slept through."""

    def __init__(
        self, has_work: Callable[[frozenset[str]], bool], longest_s: float, forget: Callable[[LocalWaiter], None]
    ) -> None:
        self._has_work = has_work
        self._longest_s = longest_s
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._forget = forget
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        return self._fd

    def arm(self, paused: frozenset[str] = frozenset()) -> float:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        # Drained first, asked second: a push in between leaves the descriptor readable.
        if self._has_work(paused):
            self.wake()
        return self._longest_s

    def wait(self, timeout_s: float) -> bool:
        poll = select.poll()  # select() fails for descriptors beyond 1023
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def wake(self) -> None:
        with self._lock:  # else a push could write to whatever the number stands for after close()
            if not self._closed:
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        self._forget(self)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)


class LocalSubscription:
    """Events handed over within one process."""

    def __init__(self, forget: Callable[[LocalSubscription], None]) -> None:
        self._forget = forget
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, event: bytes) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        self._forget(self)
