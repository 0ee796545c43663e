"""What one producer has done since its start: for its summary, its progress line and, for skipped files, the metrics.

Nothing is stored: a restart counts from zero.
"""

from __future__ import annotations

import os
from collections import Counter

from fileq.core.events import Emit, FileSkipped, SkippedFilesCounted, SkipReason, ignore

LOGGED_MAX = 1_000  # skipped files that get a log line
_LOGGED = (SkipReason.UNREADABLE, SkipReason.LOOP, SkipReason.OUTSIDE, SkipReason.DEEP, SkipReason.OLD_MARKER)


class ProducerCounts:
    """Plain numbers, incremented by the stages. A skipped file that an operator should look at is logged, once."""

    def __init__(self, emit: Emit = ignore) -> None:
        self.found = 0
        self.known = 0
        self.enqueued = 0
        self.forgotten = 0
        self.skipped: Counter[SkipReason] = Counter()
        self._emit = emit
        self._reported: Counter[SkipReason] = Counter()
        self._logged: set[tuple[SkipReason, bytes]] = set()

    def skip(self, reason: SkipReason, path: bytes, *, is_directory: bool = False) -> None:
        self.skipped[reason] += 1
        if reason in _LOGGED and (reason, path) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((reason, path))
            action = "this is a directory; each scan tries to read it again" if is_directory else None
            self._emit(FileSkipped(reason, os.fsdecode(path), action))

    def report(self) -> None:
        """Emits the skips since the last report. One event per turn, not per file, because a scan can skip millions."""
        if news := self.skipped - self._reported:
            self._reported = self.skipped.copy()
            self._emit(SkippedFilesCounted(dict(news)))
