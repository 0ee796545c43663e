"""The first stage of the producer: finds files by scans and by file-system events. Never calls a broker.

The whole scan_dir is scanned at start, after every rescan interval, and at once when events were lost or scan_dir was
replaced by another directory. Directories without events are polled. Each turn does a bounded part of a scan. A kill -9
loses nothing: the next start scans everything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from watchdog.observers.inotify_c import InotifyConstants as In
from watchdog.observers.inotify_c import inotify_add_watch, inotify_init, inotify_rm_watch

from fileq.config import Config
from fileq.core import events
from fileq.core.events import Emit, SkipReason
from fileq.files.status import FoundFile, ScanDirMounts
from fileq.producer.finder.scan import DirectoryWalk, ScanRules

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import Mask, WatchDescriptor

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
        self.schedule = ScanSchedule(self._root, rescan_s=producer.rescan_interval, poll_s=producer.poll_interval)
        self._whole: DirectoryWalk | None = None
        self._part: DirectoryWalk | None = None
        self._has_walked_part = False

    def turn(self, now_s: float, *, may_scan: bool) -> FoundBatch:
        """Takes all events and, if it may, does one step of a scan."""
        self._check_scan_dir()
        news = self._watch.take_events(now_s)
        if news.is_overflown:
            self.schedule.request_whole()
        for directory in news.directories:
            self.schedule.request(directory)
        closed, created = self._find_all(news.closed), self._find_all(news.created - news.closed)
        scanned, ended_scan = self._scan(now_s) if may_scan else ([], None)
        return FoundBatch(closed, created, scanned, ended_scan)

    @property
    def is_at_rest(self) -> bool:
        """No scan is in progress or due right now."""
        is_lost = self._scan_dir_identity is None
        return is_lost or (self._whole is None and self._part is None and self.schedule.is_empty)

    @property
    def is_scanning(self) -> bool:
        """A scan of the whole scan_dir is in progress."""
        return self._whole is not None

    @property
    def next_due_s(self) -> float:
        return NEVER if self._is_once or self._scan_dir_identity is None else self.schedule.next_due_s

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
            self._emit(events.ScanDirLost(path, error))
            return
        self.problem = ""
        self._emit(events.ScanDirRestored(path) if was_lost else events.ScanDirReplaced(path))
        self._mounts.refresh()
        self._watch.start()
        self.schedule.request_whole()

    def _abandon_walks(self) -> None:
        for walk in (self._whole, self._part):
            if walk is not None:
                walk.close()
        self._whole = self._part = None

    def _find_all(self, paths: set[bytes]) -> list[FoundFile]:
        found = []
        for path in paths:
            if self._rules.is_linked_directory(path):
                self.schedule.request(path)
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
            self.schedule.advance(now_s, self._modes.polled())
        # Parts come first. With a whole scan in progress the two alternate, so neither waits for the other's end.
        while self._part is None and (top := self.schedule.take_part()) is not None:
            if self._rules.is_entered(top):
                self._part = self._start_walk(top, now_s)
        if self._whole is None and self.schedule.take_whole():
            self._whole = self._start_walk(self._root, now_s)
        self._has_walked_part = self._part is not None and not (self._has_walked_part and self._whole is not None)
        walk = self._part if self._has_walked_part else self._whole
        if walk is None:
            return [], None
        found = walk.step()
        if self._watch.take_failure():
            self.schedule.request_whole()
        return found, self._finish(walk) if walk.is_done else None

    def _start_walk(self, top: bytes, now_s: float) -> DirectoryWalk:
        self._mounts.refresh()
        return DirectoryWalk(self._rules, top, self._watch, now_s)

    def _finish(self, walk: DirectoryWalk) -> EndedScan | None:
        now_s = self._monotonic()
        took_s = now_s - walk.started_s
        polled = self._modes.polled()
        if not walk.is_whole:
            self._part = None
            self.schedule.finish(walk.top, now_s, took_s, polled)
            return None
        self._whole = None
        self.problem = f"scan_dir {os.fsdecode(self._root)!r}: {walk.error}" if walk.error else ""
        if walk.error:
            self.schedule.fail(now_s, RETRY_S)
        else:
            self.schedule.finish(walk.top, now_s, took_s, polled)
        self._emit(events.ScanFinished(took_s, walk.is_complete))
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
        """A scan ended. The next one of its kind is due after its interval. A poll waits at least twice as long as the
        last one took, so that polling never takes all the time."""
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


# File-system events of the directories that a scan enters, as far as they can be trusted.
#
# A walk watches each directory just before it lists it, so no file falls between the listing and the watch. When events
# were lost, the batch says so, and only a scan can find what happened. A kill -9 loses the events that were not taken
# yet; the scan at the next start finds their files.
#
# Of watchdog this uses the inotify calls and constants of `observers.inotify_c`, not its public Observer, because:
# - The Observer handles an overflow of the kernel's queue itself and reports it only to its logger. The producer must
#   know, because it has to scan everything.
# - The Observer watches a whole tree or starts a thread per directory. The producer watches only the directories that
#   its rules enter, some of them not at all (network file systems are polled).
# - When the kernel refuses a watch, the producer must know, because it polls from then on.
# - The Observer knows one path per directory. With followed links two paths may lead to the same directory.

OVERFLOW_REPORT_S = 60.0  # an overflow is reported at most this often


class TreeWatch:
    """Watches directories. When the kernel has no more watches, it closes the watcher, reports that once, and
    everything is polled from then on. `wake` is set when there are new events. `is_enabled`: False for a producer that
    scans once."""

    def __init__(self, modes: WatchModes, *, emit: Emit, is_enabled: bool) -> None:
        self.wake = threading.Event()
        self._modes = modes
        self._emit = emit
        self._is_enabled = is_enabled
        self._watcher: DirectoryWatcher | None = None
        self._has_failed = False
        self._overflow_reported_s = float("-inf")
        self.start()

    def start(self) -> None:
        """Starts with no directory watched. Does nothing where no directory has events that can be trusted."""
        if not self._is_enabled or self._modes.is_event_free:
            return
        try:
            self._watcher = DirectoryWatcher(self.wake)
        except OSError as error:
            self._report_failure(error)

    def close(self) -> None:
        """Ends all watches. `start` begins anew."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def watch(self, directory: bytes) -> None:
        """Called before a directory is listed."""
        if self._watcher is None or self._modes.is_polled(directory):
            return
        try:
            self._watcher.watch(directory)
        except OSError as error:
            self.close()
            self._has_failed = True
            self._report_failure(error)

    def take_events(self, now_s: float) -> WatchEvents:
        if self._watcher is None:
            return WatchEvents()
        news = self._watcher.take_events()
        if news.is_overflown and now_s - self._overflow_reported_s >= OVERFLOW_REPORT_S:
            self._overflow_reported_s = now_s
            self._emit(events.WatchEventsLost("scanning everything"))
        return news

    def take_failure(self) -> bool:
        """Whether a watch was refused since the last call: what was watched until then needs a scan."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def _report_failure(self, error: OSError) -> None:
        self._emit(events.WatchFailed(str(error.strerror), "polling instead"))
        self._modes.has_watches = False


class WatchModes:
    """Decides which directories of scan_dir are watched by events and which are polled. Watches nothing itself.

    `producer.watch` is the setting: `events` and `poll` hold everywhere, `off` means neither, and `auto` polls network
    file systems, because changes made by other machines cause no events here."""

    def __init__(self, setting: str, mounts: ScanDirMounts) -> None:
        self._setting = setting
        self._mounts = mounts
        self.has_watches = True  # False once the kernel has no more: from then on nothing is watched by events

    @property
    def is_event_free(self) -> bool:
        """No directory of the tree is watched by events."""
        if self._setting in ("off", "poll") or not self.has_watches:
            return True
        return self._setting == "auto" and self._mounts.are_all_remote

    def is_polled(self, directory: bytes) -> bool:
        """Whether events of this directory are missing or incomplete."""
        if self._setting == "poll" or not self.has_watches:
            return True
        return self._setting == "auto" and self._mounts.is_remote(directory)

    def polled(self) -> list[bytes]:
        """The directories to scan after every poll interval."""
        if self._setting == "off":
            return []
        if self.is_polled(self._mounts.root):
            return [self._mounts.root]
        if self._setting == "events":
            return []
        return self._mounts.remote_directories()


# Only the events that matter are requested: files closed after writing, created or moved in, and directories that come
# and go.
EVENTS_MAX = 50_000  # paths kept until they are taken; beyond that a scan costs less than the memory
EXHAUSTED = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # the kernel has no more watches
_READ_BYTES = 256 * 1024
_HEADER = struct.Struct("iIII")  # watch descriptor, mask, cookie, length of the name
_MASK = cast(
    "Mask",
    In.IN_CLOSE_WRITE
    | In.IN_CREATE
    | In.IN_MOVED_TO
    | In.IN_MOVED_FROM
    | In.IN_DELETE_SELF
    | In.IN_MOVE_SELF
    | In.IN_ONLYDIR
    | In.IN_EXCL_UNLINK,
)


class WatchEvents(Struct):
    """The paths that events named since they were last taken."""

    closed: set[bytes] = set()  # written and closed, or moved in
    created: set[bytes] = set()  # files that may still be open for writing
    directories: set[bytes] = set()  # new, and not listed yet
    is_overflown: bool = False  # events were lost: only a scan can find what happened


class DirectoryWatcher:
    """The watches of one producer, and the thread that reads their events. Decides nothing. `wake` is set when there
    are new ones."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._paths: dict[int, set[bytes]] = {}  # several paths where links lead to the same directory
        self._watched: dict[bytes, int] = {}
        self._events = WatchEvents()
        self._fd = inotify_init()
        if self._fd == -1:
            raise _last_error()
        os.set_inheritable(self._fd, False)
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._read_until_stopped, name="inotify", daemon=True)
        self._thread.start()

    def watch(self, directory: bytes) -> None:
        """Collects events of this directory's entries from now on. Repeat it if the directory may be another one now.
        Raises OSError when the kernel has no more watches."""
        # Under the lock, so that no event is read before its directory is known.
        with self._lock:
            descriptor = inotify_add_watch(self._fd, directory, _MASK)
            if descriptor == -1:
                error = _last_error()
                if error.errno in EXHAUSTED:
                    raise error
                return  # missing or not permitted: the listing that follows reports it
            if self._watched.get(directory, descriptor) != descriptor:
                self._unwatch(directory)
            self._paths.setdefault(descriptor, set()).add(directory)
            self._watched[directory] = descriptor

    def take_events(self) -> WatchEvents:
        with self._lock:
            taken, self._events = self._events, WatchEvents()
            return taken

    def __len__(self) -> int:
        return len(self._watched)

    def close(self) -> None:
        """Idempotent."""
        if self._fd == -1:
            return
        os.write(self._stop_writer, b"!")
        self._thread.join()
        for fd in (self._fd, self._stop_reader, self._stop_writer):
            os.close(fd)
        self._fd = -1

    # in the reading thread

    def _read_until_stopped(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._stop_reader, select.POLLIN)
        while self._stop_reader not in (ready := [fd for fd, _ in poll.poll()]):
            if self._fd in ready:
                buffer, at = os.read(self._fd, _READ_BYTES), 0
                with self._lock:
                    while at < len(buffer):
                        descriptor, mask, _, length = _HEADER.unpack_from(buffer, at)
                        at += _HEADER.size + length
                        self._record(descriptor, mask, buffer[at - length : at].rstrip(b"\0"))
                self._wake.set()

    def _record(self, descriptor: int, mask: int, name: bytes) -> None:
        if mask & In.IN_Q_OVERFLOW:
            self._overflow()
        elif mask & In.IN_IGNORED:  # the kernel removed the watch
            for directory in self._paths.pop(descriptor, ()):
                if self._watched.get(directory) == descriptor:
                    del self._watched[directory]
        elif name:
            for directory in tuple(self._paths.get(descriptor, ())):
                self._record_entry(os.path.join(directory, name), mask)

    def _record_entry(self, path: bytes, mask: int) -> None:
        news = self._events
        if mask & In.IN_ISDIR:
            if mask & In.IN_MOVED_FROM:
                # A directory that moves keeps its watches, and their events would carry its old path. If it moves
                # within the tree, the event of its arrival leads to a scan, which watches it again.
                below = path + b"/"
                for watched in [w for w in self._watched if w == path or w.startswith(below)]:
                    self._unwatch(watched)
            elif mask & (In.IN_CREATE | In.IN_MOVED_TO):
                news.directories.add(path)
        elif mask & (In.IN_CLOSE_WRITE | In.IN_MOVED_TO):
            news.closed.add(path)
        elif mask & In.IN_CREATE:
            news.created.add(path)
        if len(news.closed) + len(news.created) + len(news.directories) > EVENTS_MAX:
            self._overflow()

    def _overflow(self) -> None:
        self._events = WatchEvents(is_overflown=True)

    def _unwatch(self, directory: bytes) -> None:
        descriptor = self._watched.pop(directory)
        paths = self._paths.get(descriptor, set())
        paths.discard(directory)
        if not paths:
            self._paths.pop(descriptor, None)
            # An error means that the kernel has removed the watch already.
            inotify_rm_watch(self._fd, cast("WatchDescriptor", descriptor))


def _last_error() -> OSError:
    number = ctypes.get_errno()
    advice = {
        errno.ENOSPC: "the limit of watches is reached; raise fs.inotify.max_user_watches",
        errno.EMFILE: "the limit of inotify instances is reached; raise fs.inotify.max_user_instances",
    }
    return OSError(number, advice.get(number, os.strerror(number)))
