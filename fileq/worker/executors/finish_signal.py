"""How handler threads signal to the pump that tasks have ended.

While the pump waits inside submit(), a lock wakes it. At all other times a descriptor becomes readable, once for any
number of tasks that end before the pump clears it. A signal is never lost: the pump clears first and looks for ended
tasks afterwards, so a task that ends later signals again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sized
from contextlib import suppress


class FinishSignal:
    """`queued` holds the tasks that no thread has taken yet. A pump that waits is woken only when it is empty."""

    def __init__(self, queued: Sized) -> None:
        self._queued = queued
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_raised = False
        self._is_awaited = False
        self._gate = threading.Lock()  # unlocked by a thread to wake the pump that waits
        self._gate.acquire()

    def fileno(self) -> int:
        return self._eventfd

    def notify(self) -> None:
        """A task has ended. Called by any thread."""
        if self._is_awaited:
            # The pump collects after its wait, so the descriptor is not needed.
            if not self._queued:
                with suppress(RuntimeError):  # another thread has unlocked it already
                    self._gate.release()
        elif not self._is_raised:
            self._is_raised = True
            os.eventfd_write(self._eventfd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable. Called by the pump before it looks for ended tasks."""
        # Read before the flag is reset: a thread that notifies between the two finds the flag set and does not write,
        # but its task has ended and the pump finds it. In the other order its write would be read here and its flag
        # would stay set, so that no later thread would write.
        with suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        self._is_raised = False

    def wait(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until is_done(); False if it is not by the deadline, a time by time.monotonic()."""
        self._is_awaited = True
        try:
            while not is_done():
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    return False
                self._gate.acquire(timeout=left_s)
            return True
        finally:
            self._is_awaited = False

    def close(self) -> None:
        os.close(self._eventfd)
