"""The error that ends a role from inside: the broker's data is gone, or the worker's loop has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fileq.core.errors import FileqError


class FatalError:
    """Keeps the first error that is reported, and wakes the thread that waits for signals. Threads share it."""

    def __init__(self) -> None:
        self.error: FileqError | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None

    def report(self, error: FileqError) -> None:
        with self._lock:
            self.error = self.error or error
            if self._wake is not None:
                self._wake()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Calls `wake` for each report from now on, and for one that came before."""
        with self._lock:
            self._wake = wake
            if self.error is not None:
                wake()
