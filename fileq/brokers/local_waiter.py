"""Wakes a pump within one process, for the brokers that have no server to do it. Knows no broker and no job."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class LocalWaiter:
    """Implements protocol.Waiter by an eventfd that becomes readable when a job is pushed.

    `has_work` is called on arming, so that a push between the last claim and arming is not missed."""

    def __init__(self, has_work: Callable[[], bool], longest_s: float, on_close: Callable[[LocalWaiter], None]) -> None:
        self._has_work = has_work
        self._longest_s = longest_s
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._on_close = on_close
        self._lock = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        return self._fd

    def arm(self) -> float:
        self.take()
        # The descriptor is drained before the check: a push between the two leaves it readable.
        if self._has_work():
            self.wake()
        return self._longest_s

    def take(self) -> bool:
        try:
            return os.eventfd_read(self._fd) > 0
        except BlockingIOError:
            return False

    def wait(self, timeout_s: float) -> bool:
        poll = select.poll()  # select() fails for descriptors beyond 1023
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def wake(self) -> None:
        # Under the lock: after close() the descriptor's number may belong to another file.
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        self._on_close(self)
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._fd)


class ClaimOrder:
    """The order in which a claim tries the queues: strict priority, except that every (1/share)th claim starts at a
    lower queue, taking those in rotation.

    Counts the claims of one process. A claim that finds no job does not count."""

    def __init__(self, queues: tuple[str, ...], share: float) -> None:
        self.queues = queues
        self.every = round(1 / share) if share > 0 and len(queues) > 1 else 0
        self.claims = 0

    def next_order(self) -> tuple[str, ...]:
        """The queues in the order in which the next claim tries them."""
        if not self.every or (self.claims + 1) % self.every:
            return self.queues
        lower = self.queues[1:]
        first = lower[((self.claims + 1) // self.every - 1) % len(lower)]
        return (first, *(queue for queue in self.queues if queue != first))

    def claimed(self) -> None:
        """Counts a claim that found a job."""
        self.claims += 1


def take_lease(
    leases: dict[str, tuple[str, int]], name: str, holder: str, ttl_ms: int, instead_of: str, now_ms: int
) -> str:
    """protocol.Broker.lease() on a dictionary: name → holder, when the lease ends. Returns who has it then."""
    for ended in [name for name, (_, ends_ms) in leases.items() if ends_ms <= now_ms]:
        del leases[ended]
    had, ends_ms = leases.get(name, ("", 0))
    counts = ttl_ms == 0 or ends_ms - now_ms <= ttl_ms
    if had not in ("", holder, instead_of) and counts:
        return had
    if ttl_ms == 0:
        leases.pop(name, None)
        return ""
    leases[name] = holder, now_ms + ttl_ms
    return holder
