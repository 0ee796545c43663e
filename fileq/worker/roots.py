"""Watches whether the roots of file jobs are there."""

from __future__ import annotations

import os
import threading
import time

LOOK_EVERY_S = 1.0


class RootsWatch:
    """Looks whether the roots are there, in a thread of its own: a dead mount may hold a look for minutes."""

    def __init__(self, roots: tuple[bytes, ...]) -> None:
        self._roots = roots
        self._missing = self._look()
        self._seen_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def problem(self) -> str:
        """Why no file can be reached; "" while all roots are there."""
        if self._missing:
            return f"{', '.join(map(os.fsdecode, self._missing))} is missing (not mounted?)"
        if time.monotonic() - self._seen_s > 10 * LOOK_EVERY_S:
            return f"{', '.join(map(os.fsdecode, self._roots))} does not answer"
        return ""

    def close(self) -> None:
        self._stop.set()

    def _look(self) -> list[bytes]:
        return [root for root in self._roots if not os.path.isdir(root)]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._missing = self._look()
            self._seen_s = time.monotonic()
