"""The first stage of the producer: finds files by scans and by file-system events. Never calls a broker.

The whole scan_dir is scanned at start, after every rescan interval, and at once when events were lost or scan_dir was
replaced by another directory. Directories without events are polled. Each turn does a bounded part of a scan. A kill -9
loses nothing: the next start scans everything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from fileq.config import Config
from fileq.core.events import Emit
from fileq.core.file_events import ScanDirLost, ScanDirReplaced, ScanDirRestored, ScanFinished, SkipReason
from fileq.files.mounts import ScanDirMounts
from fileq.producer.finder.found_file import FoundFile
from fileq.producer.finder.rules import ScanRules
from fileq.producer.finder.scan import DirectoryWalk
from fileq.producer.finder.schedule import NEVER, ScanSchedule
from fileq.producer.finder.tree_watch import TreeWatch
from fileq.producer.finder.watch_modes import WatchModes

RETRY_S = 1.0  # while scan_dir cannot be read


class EndedScan(Struct, frozen=True):
    """A scan of the whole scan_dir. `is_complete`: it missed no file because of an error. `found`: how many files.
    `skipped`: how many entries it passed over, by reason."""

    is_complete: bool
    began_s: float
    ended_s: float
    found: int
    skipped: Mapping[SkipReason, int]


class FoundBatch(Struct):
    """What one turn found, by how it was found."""

    closed: list[FoundFile]  # an event: written and closed, or moved in
    created: list[FoundFile]  # an event: created, and perhaps still open for writing
    scanned: list[FoundFile]
    ended_scan: EndedScan | None


class Finder:
    def __init__(
        self,
        config: Config,
        rules: ScanRules,
        mounts: ScanDirMounts,
        *,
        emit: Emit,
        is_once: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        producer = config.producer
        self.problem = ""  # why scan_dir cannot be scanned; "" when it can
        self.last_scan: EndedScan | None = None
        self._root = rules.root
        self._rules = rules
        self._mounts = mounts
        self._emit = emit
        self._monotonic = monotonic
        self._is_once = is_once
        self._modes = WatchModes(producer.watch, mounts)
        self._scan_dir_identity = _identify(self._root)[0]
        self._watch = TreeWatch(self._modes, emit=emit, is_enabled=not is_once)
        self.wake = self._watch.wake
        self._schedule = ScanSchedule(self._root, rescan_s=producer.rescan_interval, poll_s=producer.poll_interval)
        self._whole: DirectoryWalk | None = None
        self._part: DirectoryWalk | None = None
        self._has_walked_part = False

    def turn(self, now_s: float, *, may_scan: bool) -> FoundBatch:
        """Takes all events and, if it may, does one step of a scan."""
        self._check_scan_dir()
        closed, created = self._take_events(now_s)
        scanned, ended_scan = self._scan(now_s) if may_scan else ([], None)
        return FoundBatch(closed, created, scanned, ended_scan)

    @property
    def is_at_rest(self) -> bool:
        """No scan is in progress or due right now."""
        is_lost = self._scan_dir_identity is None
        return is_lost or (self._whole is None and self._part is None and self._schedule.is_empty)

    @property
    def is_scanning(self) -> bool:
        """A scan of the whole scan_dir is in progress."""
        return self._whole is not None

    @property
    def next_due_s(self) -> float:
        return NEVER if self._is_once or self._scan_dir_identity is None else self._schedule.next_due_s

    def rescan(self) -> None:
        """A found file could not be kept: the whole scan_dir is scanned again, which finds it again."""
        self._schedule.request_whole()

    def close(self) -> None:
        self._watch.close()
        self._abandon_walks()

    # scan_dir itself

    def _check_scan_dir(self) -> None:
        """A scan_dir that was replaced is a different directory: all of it is watched and scanned anew."""
        identity, error = _identify(self._root)
        if identity == self._scan_dir_identity:
            return
        was_lost, self._scan_dir_identity = self._scan_dir_identity is None, identity
        self._watch.close()
        self._abandon_walks()
        path = os.fsdecode(self._root)
        if identity is None:
            self.problem = f"scan_dir {path!r}: {error}"
            self._emit(ScanDirLost(path, error))
            return
        self.problem = ""
        self._emit(ScanDirRestored(path) if was_lost else ScanDirReplaced(path))
        self._mounts.refresh()
        self._watch.start()
        self._schedule.request_whole()

    def _abandon_walks(self) -> None:
        for walk in (self._whole, self._part):
            if walk is not None:
                walk.close()
        self._whole = self._part = None

    # events

    def _take_events(self, now_s: float) -> tuple[list[FoundFile], list[FoundFile]]:
        """The files that were closed and those that were only created. New directories are scheduled."""
        events = self._watch.take_events(now_s)
        if events.is_overflown:
            self._schedule.request_whole()
        for directory in events.directories:
            self._schedule.request(directory)
        return self._find_all(events.closed), self._find_all(events.created - events.closed)

    def _find_all(self, paths: set[bytes]) -> list[FoundFile]:
        found = []
        for path in paths:
            if self._rules.is_linked_directory(path):
                self._schedule.request(path)
                continue
            marked = self._rules.marked_file(path)
            file = self._rules.find(path if marked is None else marked)
            if file is not None:
                found.append(file)
        return found

    # scans

    def _scan(self, now_s: float) -> tuple[list[FoundFile], EndedScan | None]:
        if self._scan_dir_identity is None:
            return [], None
        if not self._is_once:
            self._schedule.advance(now_s, self._modes.polled())
        walk = self._current_walk(now_s)
        if walk is None:
            return [], None
        found = walk.step()
        if self._watch.take_failure():
            self._schedule.request_whole()
        return found, self._finish(walk) if walk.is_done else None

    def _current_walk(self, now_s: float) -> DirectoryWalk | None:
        """Parts come first. With a whole scan in progress the two alternate, so neither waits for the other's end."""
        while self._part is None and (top := self._schedule.take_part()) is not None:
            if self._rules.is_entered(top):
                self._part = self._start_walk(top, now_s)
        if self._whole is None and self._schedule.take_whole():
            self._whole = self._start_walk(self._root, now_s)
        self._has_walked_part = self._part is not None and not (self._has_walked_part and self._whole is not None)
        return self._part if self._has_walked_part else self._whole

    def _start_walk(self, top: bytes, now_s: float) -> DirectoryWalk:
        self._mounts.refresh()
        return DirectoryWalk(self._rules, top, self._watch, now_s)

    def _finish(self, walk: DirectoryWalk) -> EndedScan | None:
        now_s = self._monotonic()
        took_s = now_s - walk.started_s
        polled = self._modes.polled()
        if not walk.is_whole:
            self._part = None
            self._schedule.finish(walk.top, now_s, took_s, polled)
            return None
        self._whole = None
        self.problem = f"scan_dir {os.fsdecode(self._root)!r}: {walk.error}" if walk.error else ""
        if walk.error:
            self._schedule.fail(now_s, RETRY_S)
        else:
            self._schedule.finish(walk.top, now_s, took_s, polled)
        self._emit(ScanFinished(took_s, walk.is_complete))
        self.last_scan = EndedScan(walk.is_complete, walk.started_s, now_s, walk.found_count, walk.skipped)
        return self.last_scan


def _identify(root: bytes) -> tuple[tuple[int, int] | None, str]:
    """Device and inode of scan_dir, or None and the reason why it cannot be read."""
    try:
        # With a slash at the end, so that a path to something else than a directory is an error too.
        status = os.stat(os.path.join(root, b""))
    except OSError as error:
        return None, error.strerror or str(error)
    return (status.st_dev, status.st_ino), ""
