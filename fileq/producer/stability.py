"""The stage that waits until files are complete. Never calls a broker, never opens a file.

A file is stable when its size, modification time and inode have not changed for a while: a short while after its
writer closed it or moved it in (`producer.settle`), a longer one when that is unknown (`producer.settle_unclosed`).

The number of waiting files is bounded. A file without room is rejected; the caller requests a scan, which finds it
again. A kill -9 loses the waiting files from memory, and the scan at the next start finds them again.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from fileq.config import Config
from fileq.core.events import SkipReason
from fileq.files.status import FoundFile, ScanDirMounts
from fileq.producer.finder.scan import ScanRules
from fileq.producer.markers import Markers

WAITING_MAX = 50_000
CHECKS_PER_TURN = 500  # files whose time is over
STEP_S = 0.5  # between two checks the two clocks drift apart by far less
_SLOW_CHECK_S = 0.05


class _Waiting(Struct):
    file: FoundFile
    due_s: float


class Stability:
    """The files that may still be changing, by path."""

    def __init__(
        self, config: Config, rules: ScanRules, markers: Markers | None, mounts: ScanDirMounts, clock: ClockGuard
    ) -> None:
        self._closed_s = config.producer.settle
        self._unclosed_s = config.producer.settle_unclosed
        self._rules = rules
        self._markers = markers
        self._mounts = mounts
        self._clock = clock
        self._waiting: dict[bytes, _Waiting] = {}
        self._due: list[tuple[float, bytes]] = []  # a heap; entries of postponed files are stale
        self._aged: list[FoundFile] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    def add(self, files: Iterable[FoundFile], now_s: float, *, is_closed: bool) -> bool:
        """Takes files that events named. False if some had no room."""
        has_room = True
        for file in files:
            has_room &= self._wait(file, now_s, is_closed=is_closed)
        return has_room

    def add_scanned(self, files: Iterable[FoundFile], now_s: float) -> bool:
        """Takes files that a scan found. Those that are old enough do not wait. False if some had no room."""
        has_room, markers = True, self._markers
        for file in files:
            if markers is not None and (refusal := markers.refusal(file, markers.of(file.path))):
                self._rules.counts.skip(refusal, file.path)
            elif self._has_aged(file):
                self._aged.append(file)
            else:
                has_room &= self._wait(file, now_s, is_closed=False)
        return has_room

    def turn(self, now_s: float, most: int) -> list[FoundFile]:
        """The files that are stable now: all that were old enough when they came, and up to `most` others, which are
        read again first. A file that is gone is dropped."""
        stable, self._aged = self._aged, []
        counts, markers = self._rules.counts, self._markers
        for _ in range(min(most, CHECKS_PER_TURN)):
            due_s = self.next_due_s()
            if due_s is None or due_s > now_s:
                break
            path = self._due[0][1]
            marker = markers.of(path) if markers is not None else None
            file = self._rules.find(path)
            heapq.heappop(self._due)
            was_full, earlier = self.is_full, self._waiting.pop(path).file
            if file is None:
                continue
            if not file.is_unchanged_since(earlier):
                counts.skip(SkipReason.CHANGING, path)
                # While there is no room, a changing file gives way to others. Its next event or a scan brings it back.
                if not was_full:
                    self._wait(file, now_s, is_closed=False)
            elif markers is not None and (refusal := markers.refusal(file, marker)):
                # A missing marker is not waited for: the event of its creation, or a scan, brings the file back.
                counts.skip(refusal, path)
            else:
                stable.append(file)
        return stable

    def next_due_s(self) -> float | None:
        """When the next file may be stable, or None."""
        while self._due:
            due_s, path = self._due[0]
            waiting = self._waiting.get(path)
            if waiting is not None and waiting.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return None

    def _wait(self, file: FoundFile, now_s: float, *, is_closed: bool) -> bool:
        """A change or a close restarts the file's time. False if there is no room."""
        waiting = self._waiting.get(file.path)
        if waiting is None and self.is_full:
            return False
        if waiting is None or is_closed or not file.is_unchanged_since(waiting.file):
            due_s = now_s + (self._closed_s if is_closed else self._unclosed_s)
            self._waiting[file.path] = _Waiting(file, due_s)
            heapq.heappush(self._due, (due_s, file.path))
        return True

    def _has_aged(self, file: FoundFile) -> bool:
        """Whether the file has not been written to for long enough already.

        Every write sets the modification time to now, also in a copy that gets an older one at its end. So an old one
        means that nothing was written since, although the file may have been copied or moved here a moment ago. This
        holds only if the clock of this machine wrote the time, so files of remote mounts always wait."""
        if file.path in self._waiting or self._mounts.is_remote(os.path.dirname(file.path)):
            return False
        return self._clock.has_aged(file.mtime_ns)


class ClockGuard:
    """Reads the wall clock, for the age of files and for the days in the ledger, and says when it cannot be trusted
    because it was set: compares it with the monotonic clock. Never waits.

    After a step of the wall clock, or a suspend of the machine, the timestamps of files written before it give a wrong
    age. Once `settle_unclosed` has passed since the step, those files are old enough in truth too."""

    def __init__(
        self,
        settle_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settle_s = settle_s
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._untrusted_until_s = float("-inf")
        self._offset_s = self._first_offset_s = wall_ns() / 1e9 - monotonic()

    def check(self) -> None:
        """Notices a step of the wall clock. To be called often: it sees only what happened since the last call."""
        before_s = self._monotonic()
        offset_s = self._wall_ns() / 1e9 - before_s
        if self._monotonic() - before_s > _SLOW_CHECK_S:
            return  # this process was suspended between the two readings: that is no step
        if abs(offset_s - self._offset_s) > STEP_S:
            self._untrusted_until_s = before_s + self._settle_s
        self._offset_s = offset_s

    def has_aged(self, modified_ns: int) -> bool:
        """Whether a file with this timestamp has not been touched for `settle_unclosed`."""
        self.check()
        return self._wall_ns() - modified_ns >= self._settle_s * 1e9 and self._monotonic() >= self._untrusted_until_s

    def steady_ms(self) -> int:
        """Milliseconds since the epoch, unaffected by steps of the wall clock since the start."""
        return round((self._first_offset_s + self._monotonic()) * 1000)
