"""Goes over scan_dir: scans, listens in between, and notices when the ground is gone. Asks no broker.

The whole is scanned at start, every rescan_interval, and at once when events were lost or scan_dir was replaced.
What can't be watched is polled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from fileq.config import Config
from fileq.core.events import (
    Emit,
    ScanDirLost,
    ScanDirReplaced,
    ScanDirRestored,
    ScanFinished,
    WatchEventsLost,
    WatchFailed,
)
from fileq.producer.agenda import NEVER, Agenda
from fileq.producer.places import Places
from fileq.producer.scan import Found, Scanner, Walk
from fileq.producer.watch import Heard, Watcher

TOLD_EVERY_S = 60.0  # where events are lost again and again
RETRY_S = 1.0  # while scan_dir can't be read
_NOTHING = Heard(set(), set(), set())


class Scan(Struct, frozen=True):
    """A whole scan that has ended."""

    took_s: float
    is_complete: bool


class Patrol:
    def __init__(
        self,
        config: Config,
        scanner: Scanner,
        *,
        emit: Emit,
        wake: threading.Event,
        is_once: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        producer = config.producer
        self.root = scanner.root
        self.places = Places(producer.watch, self.root)
        self.problem = ""  # why there is nothing to scan; "" when there is
        self._scanner = scanner
        self._emit = emit
        self._wake = wake
        self._monotonic = monotonic
        self._is_once = is_once
        self._agenda = Agenda(self.root, rescan_s=producer.rescan_interval, poll_s=producer.poll_interval)
        self._whole: Walk | None = None
        self._part: Walk | None = None
        self._has_walked_part = False
        self._ended: Scan | None = None
        self._told_lost_s = float("-inf")
        self._ground = _identity(self.root)[0]
        self._watcher = self._start_watching()

    @property
    def is_at_rest(self) -> bool:
        """Nothing is being scanned, nor to be scanned right now."""
        return self._ground is None or (self._whole is None and self._part is None and self._agenda.is_empty)

    @property
    def next_due_s(self) -> float:
        return NEVER if self._is_once or self._ground is None else self._agenda.next_due_s

    def want(self, directory: bytes) -> None:
        """A directory has appeared: scan it soon."""
        self._agenda.want(directory)

    def rescan(self) -> None:
        """Something was seen and could not be kept: find it again."""
        self._agenda.want_whole()

    def take_ended(self) -> Scan | None:
        """The whole scan that has ended since the last time."""
        ended, self._ended = self._ended, None
        return ended

    def close(self) -> None:
        self._stop_watching()
        self._abandon()

    # the ground

    def check_ground(self) -> None:
        """A scan_dir that was replaced is another one: its directories must be watched anew, and scanned."""
        ground, trouble = _identity(self.root)
        if ground == self._ground:
            return
        was_there, self._ground = self._ground is not None, ground
        self._stop_watching()
        self._abandon()
        if ground is None:
            self.problem = f"scan_dir {os.fsdecode(self.root)!r}: {trouble}"
            self._emit(ScanDirLost(os.fsdecode(self.root), trouble))
            return
        self.problem = ""
        self._emit((ScanDirReplaced if was_there else ScanDirRestored)(os.fsdecode(self.root)))
        self.places.refresh()
        self._watcher = self._start_watching()
        self._agenda.want_whole()

    def _abandon(self) -> None:
        for walk in (self._whole, self._part):
            if walk is not None:
                walk.close()
        self._whole = self._part = None

    # listening

    def hear(self, now_s: float) -> Heard:
        """The files that events spoke of; directories are put on the agenda."""
        if self._watcher is None:
            return _NOTHING
        heard = self._watcher.take()
        if heard.is_overflown:
            if now_s - self._told_lost_s >= TOLD_EVERY_S:
                self._told_lost_s = now_s
                self._emit(WatchEventsLost("scanning everything"))
            self._agenda.want_whole()
        for directory in heard.directories:
            self._agenda.want(directory)
        return heard

    def _start_watching(self) -> Watcher | None:
        """None where there is nothing to hear, or the kernel has no more to give."""
        if self._is_once or self.places.hears_nothing:
            return None
        try:
            return Watcher(self._wake)
        except OSError as error:
            self._poll_instead(error)
            return None

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _poll_instead(self, error: OSError) -> None:
        self._emit(WatchFailed(str(error.strerror), "polling instead"))
        self.places.poll_everything()
        self._agenda.want_whole()

    def _entered(self, directory: bytes) -> None:
        """Before a directory is listed: what comes into it from now on is heard."""
        if self._watcher is None or self.places.is_polled(directory):
            return
        try:
            self._watcher.watch(directory)
        except OSError as error:
            self._stop_watching()
            self._poll_instead(error)

    # scanning

    def walk_on(self, now_s: float) -> list[Found]:
        """One step further in the scan that is under way, if there is one."""
        if self._ground is None:
            return []
        if not self._is_once:
            self._agenda.plan(now_s, self.places.polled())
        walk = self._current_walk(now_s)
        if walk is None:
            return []
        found = walk.step()
        if walk.is_done:
            self._finish(walk)
        return found

    def _current_walk(self, now_s: float) -> Walk | None:
        """Parts come first, and by turns where both are under way: neither waits for the end of the other."""
        while self._part is None and (top := self._agenda.take_part()) is not None:
            if self._scanner.is_entered(top):
                self._part = self._start(top, now_s)
        if self._whole is None and self._agenda.take_whole():
            self._whole = self._start(self.root, now_s)
        self._has_walked_part = self._part is not None and not (self._has_walked_part and self._whole is not None)
        return self._part if self._has_walked_part else self._whole

    def _start(self, top: bytes, now_s: float) -> Walk:
        self.places.refresh()
        walk = self._scanner.walk(top, self._entered)
        walk.started_s = now_s
        return walk

    def _finish(self, walk: Walk) -> None:
        now_s = self._monotonic()
        took_s = now_s - walk.started_s
        if walk.is_whole:
            self._whole = None
            self._ended = Scan(took_s, walk.is_complete)
            self._emit(ScanFinished(took_s, walk.is_complete))
            self.problem = f"scan_dir {os.fsdecode(self.root)!r}: {walk.fault}" if walk.fault else ""
        else:
            self._part = None
        if walk.is_whole and walk.fault:
            self._agenda.failed(now_s, RETRY_S)
        else:
            self._agenda.finished(walk.top, now_s, took_s, self.places.polled())


def _identity(root: bytes) -> tuple[tuple[int, int] | None, str]:
    """Which directory this is, or None and why there is none."""
    try:
        # With a slash: a path that leads to something else is an error too.
        status = os.stat(os.path.join(root, b""))
    except OSError as error:
        return None, error.strerror or str(error)
    return (status.st_dev, status.st_ino), ""
