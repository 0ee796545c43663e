"""The events of files and of the producer, built as those in events.py."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from fileq.core.events import Event


class SkipReason(enum.StrEnum):
    """Why a producer saw a file or directory and did not enqueue it."""

    EXCLUDED = "excluded"
    SYMLINK = "symlink"
    OUTSIDE = "outside"
    LOOP = "loop"
    DEEP = "deep"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    VANISHED = "vanished"
    CHANGING = "changing"
    UNMARKED = "unmarked"
    OLD_MARKER = "old_marker"
    VETOED = "vetoed"
    VETO_FAILED = "veto_failed"


class FileSkipped(Event, frozen=True):
    """A file or directory could not be read, a link leads outside `scan_dir`, in a circle or from one linked directory
    to another, a directory is nested too deeply, or the marker of a file is older than the file."""

    name = "file.skipped"
    level = "warning"

    reason: SkipReason
    path: str


class FileKept(Event, frozen=True):
    """A file was not moved or deleted as `worker.after` says."""

    name = "file.kept"
    level = "warning"

    path: str
    wanted: str
    reason: str


class SkippedFilesCounted(Event, frozen=True):
    """How many files one turn of the producer skipped, by reason."""

    name = "producer.files_skipped"
    level = "none"

    counts: Mapping[SkipReason, int]


class ScanFinished(Event, frozen=True):
    """A scan of the whole `scan_dir` ended. `is_complete`: without errors."""

    name = "scan.finished"
    level = "debug"

    seconds: float
    is_complete: bool


class ScanDirLost(Event, frozen=True):
    """`scan_dir` is missing or cannot be read."""

    name = "scan_dir.lost"
    level = "warning"

    path: str
    error: str


class ScanDirRestored(Event, frozen=True):
    """`scan_dir` is back."""

    name = "scan_dir.restored"

    path: str


class ScanDirReplaced(Event, frozen=True):
    """`scan_dir` is a different directory now; all of it is scanned."""

    name = "scan_dir.replaced"

    path: str


class WatchEventsLost(Event, frozen=True):
    """The kernel dropped file-system events; all of `scan_dir` is scanned."""

    name = "producer.events_lost"
    level = "warning"

    action: str


class WatchFailed(Event, frozen=True):
    """Directories cannot be watched; they are polled instead."""

    name = "producer.watch_failed"
    level = "warning"

    error: str
    action: str


class MarkersKept(Event, frozen=True):
    """A marker of `producer.ready_suffix` could not be removed after its file was enqueued. It does not count for the
    next file of that name. Reported once, for the first such marker."""

    name = "producer.markers_kept"
    level = "warning"

    path: str
    error: str


class InodesNotCompared(Event, frozen=True):
    """A file system does not keep inode numbers: there a file is a new version only if its size or modification time is
    another. Reported once for each type of file system."""

    name = "producer.inodes_not_compared"

    path: str
    filesystem: str
    identity: str
