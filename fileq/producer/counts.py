"""What a producer has done since its start, for its summary and its progress line; skipped files also for metrics."""

from __future__ import annotations

import os
from collections import Counter

from fileq.core.events import Emit, FileSkipped, FilesSkipped, SkipReason, ignore

LOGGED_MAX = 1_000  # skipped files with a log line of their own
_LOGGED = (SkipReason.UNREADABLE, SkipReason.LOOP, SkipReason.OUTSIDE)


class ProducerCounts:
    """Plain numbers. Skips are reported once per turn; a file that an operator should look at is also logged, once."""

    def __init__(self, emit: Emit = ignore) -> None:
        self.found = 0
        self.known = 0
        self.enqueued = 0
        self.forgotten = 0
        self.skipped: Counter[SkipReason] = Counter()
        self._emit = emit
        self._reported: Counter[SkipReason] = Counter()
        self._logged: set[tuple[SkipReason, bytes]] = set()

    def skip(self, reason: SkipReason, path: bytes) -> None:
        self.skipped[reason] += 1
        if reason in _LOGGED and (reason, path) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((reason, path))
            self._emit(FileSkipped(reason, os.fsdecode(path)))

    def report(self) -> None:
        """Emits what was skipped since the last report. One event per turn, not per file: a scan can skip millions."""
        if news := self.skipped - self._reported:
            self._reported = self.skipped.copy()
            self._emit(FilesSkipped(dict(news)))
