"""The first stage of the producer: finds files by scans and by file-system events. Never calls a broker.

The whole scan_dir is scanned at start, after every rescan interval, and at once when events were lost or scan_dir was
replaced by another directory. Directories without events are polled. Each turn does a bounded part of a scan. A kill -9
loses nothing: the next start scans everything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from fileq.config import Config
from fileq.core.events import Emit, ScanDirLost, ScanDirReplaced, ScanDirRestored, ScanFinished, SkipReason
from fileq.files.mounts import ScanDirMounts
from fileq.files.version import FoundFile
from fileq.producer.finder.scan import DirectoryWalk, ScanRules
from fileq.producer.finder.watch import TreeWatch, WatchModes

RETRY_S = 1.0  # while scan_dir cannot be read
PARTS_MAX = 1000  # with more parts one whole scan is less work
NEVER = float("inf")


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


class ScanSchedule:
    """Plans which directory is scanned next, and when: the whole scan_dir after every interval, and parts of it in
    between. Does no I/O and reads no clock: the caller passes the time.

    A whole scan can take long, and longer under a rate limit. Directories that events name are parts, and come first,
    so that new files do not wait for the end of a whole scan."""

    def __init__(self, root: bytes, *, rescan_s: float, poll_s: float) -> None:
        self._root = root
        self._rescan_s = rescan_s
        self._poll_s = poll_s
        self._parts: dict[bytes, None] = {}
        self._is_whole_requested = True
        self._next_whole_s = NEVER
        self._next_poll_s = NEVER
        self._being_polled: set[bytes] = set()
        self._poll_took_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Nothing is to be scanned right now."""
        return not self._is_whole_requested and not self._parts

    @property
    def next_due_s(self) -> float:
        return min(self._next_whole_s, self._next_poll_s)

    def request(self, directory: bytes) -> None:
        self._parts[directory] = None
        if directory == self._root or len(self._parts) > PARTS_MAX:
            self._parts.clear()
            self.request_whole()

    def request_whole(self) -> None:
        self._is_whole_requested = True

    def advance(self, now_s: float, polled: Sequence[bytes]) -> None:
        """Requests the scans that have become due. `polled` are the directories without events."""
        if now_s >= self._next_whole_s:
            self._next_whole_s = NEVER
            self.request_whole()
        if now_s >= self._next_poll_s:
            self._next_poll_s, self._poll_took_s = NEVER, 0.0
            self._being_polled = set(polled)
            for directory in polled:
                self.request(directory)

    def take_part(self) -> bytes | None:
        """The part that was requested first."""
        directory = next(iter(self._parts), None)
        if directory is not None:
            del self._parts[directory]
        return directory

    def take_whole(self) -> bool:
        is_requested, self._is_whole_requested = self._is_whole_requested, False
        return is_requested

    def finish(self, directory: bytes, now_s: float, took_s: float, polled: Sequence[bytes]) -> None:
        """A scan ended. The next one of its kind is due after its interval.

        A poll waits at least twice as long as the last one took, so that polling never takes all the time."""
        if directory == self._root:
            self._next_whole_s = now_s + self._rescan_s
            self._being_polled = set(polled) & {self._root}
            self._poll_took_s = 0.0
        if directory in self._being_polled or directory == self._root:
            self._being_polled.discard(directory)
            self._poll_took_s += took_s
            if polled and not self._being_polled:
                self._next_poll_s = now_s + max(self._poll_s, 2 * self._poll_took_s)

    def fail(self, now_s: float, pause_s: float) -> None:
        """scan_dir could not be read: the whole is due again after a short pause."""
        self._parts.clear()
        self._being_polled.clear()
        self._is_whole_requested = False
        self._next_whole_s, self._next_poll_s = now_s + pause_s, NEVER
