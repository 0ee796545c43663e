"""Checks whether the root directories of file jobs are there. Claims are stopped while one is missing."""

from __future__ import annotations

import os
import threading
import time

CHECK_EVERY_S = 1.0


class RootsWatch:
    """Checks in a thread of its own: a check of a dead network mount may block for minutes."""

    def __init__(self, roots: tuple[bytes, ...]) -> None:
        self._roots = roots
        self._missing = self._find_missing()
        self._checked_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def problem(self) -> str:
        """Why files cannot be reached; "" while all roots are there."""
        if self._missing:
            return f"{', '.join(map(os.fsdecode, self._missing))} is missing (not mounted?)"
        if time.monotonic() - self._checked_s > 10 * CHECK_EVERY_S:
            return f"{', '.join(map(os.fsdecode, self._roots))} does not answer"
        return ""

    def close(self) -> None:
        self._stop.set()

    def _find_missing(self) -> list[bytes]:
        return [root for root in self._roots if not os.path.isdir(root)]

    def _run(self) -> None:
        while not self._stop.wait(CHECK_EVERY_S):
            self._missing = self._find_missing()
            self._checked_s = time.monotonic()
