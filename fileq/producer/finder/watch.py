"""File-system events of the directories that a scan enters, as far as they can be trusted. Requests no scans.

A walk watches each directory just before it lists it, so no file falls between the listing and the watch. When events
were lost, the batch says so, and only a scan can find what happened. A kill -9 loses the events that were not taken
yet; the scan at the next start finds their files.

Of watchdog this uses the inotify calls and constants of `observers.inotify_c`, not its public Observer, because:
- The Observer handles an overflow of the kernel's queue itself and reports it only to its logger. The producer must
  know, because it has to scan everything.
- The Observer watches a whole tree or starts a thread per directory. The producer watches only the directories that its
  rules enter, some of them not at all (network file systems are polled).
- When the kernel refuses a watch, the producer must know, because it polls from then on.
- The Observer knows one path per directory. With followed links two paths may lead to the same directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct
from watchdog.observers.inotify_c import InotifyConstants as In
from watchdog.observers.inotify_c import inotify_add_watch, inotify_init, inotify_rm_watch

from fileq.core.events import Emit, WatchEventsLost, WatchFailed
from fileq.files.mounts import ScanDirMounts

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import Mask, WatchDescriptor

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
            return no_events()
        events = self._watcher.take_events()
        if events.is_overflown and now_s - self._overflow_reported_s >= OVERFLOW_REPORT_S:
            self._overflow_reported_s = now_s
            self._emit(WatchEventsLost("scanning everything"))
        return events

    def take_failure(self) -> bool:
        """Whether a watch was refused since the last call: what was watched until then needs a scan."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def _report_failure(self, error: OSError) -> None:
        self._emit(WatchFailed(str(error.strerror), "polling instead"))
        self._modes.poll_everything()


class WatchModes:
    """Decides which directories of scan_dir are watched by events and which are polled. Watches nothing itself.

    `producer.watch` is the setting: `events` and `poll` hold everywhere, `off` means neither, and `auto` polls network
    file systems, because changes made by other machines cause no events here."""

    def __init__(self, setting: str, mounts: ScanDirMounts) -> None:
        self._setting = setting
        self._mounts = mounts
        self._has_watches = True

    @property
    def is_event_free(self) -> bool:
        """No directory of the tree is watched by events."""
        if self._setting in ("off", "poll") or not self._has_watches:
            return True
        return self._setting == "auto" and self._mounts.are_all_remote

    def is_polled(self, directory: bytes) -> bool:
        """Whether events of this directory are missing or incomplete."""
        if self._setting == "poll" or not self._has_watches:
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

    def poll_everything(self) -> None:
        """The kernel has no more watches: from now on nothing is watched by events."""
        self._has_watches = False


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
_KernelEvent: TypeAlias = tuple[int, int, bytes]  # watch descriptor, mask, name within the directory


class WatchEvents(Struct):
    """The paths that events named since they were last taken."""

    closed: set[bytes]  # written and closed, or moved in
    created: set[bytes]  # files that may still be open for writing
    directories: set[bytes]  # new, and not listed yet
    is_overflown: bool = False  # events were lost: only a scan can find what happened


def no_events() -> WatchEvents:
    return WatchEvents(set(), set(), set())


class DirectoryWatcher:
    """The watches of one producer, and the thread that reads their events. Decides nothing. `wake` is set when there
    are new ones."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._paths: dict[int, set[bytes]] = {}  # several paths where links lead to the same directory
        self._watched: dict[bytes, int] = {}
        self._events = no_events()
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
            events, self._events = self._events, no_events()
            return events

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
                events = list(_parse(os.read(self._fd, _READ_BYTES)))
                with self._lock:
                    for event in events:
                        self._record(*event)
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
        events = self._events
        if mask & In.IN_ISDIR:
            if mask & In.IN_MOVED_FROM:
                self._unwatch_tree(path)
            elif mask & (In.IN_CREATE | In.IN_MOVED_TO):
                events.directories.add(path)
        elif mask & (In.IN_CLOSE_WRITE | In.IN_MOVED_TO):
            events.closed.add(path)
        elif mask & In.IN_CREATE:
            events.created.add(path)
        if len(events.closed) + len(events.created) + len(events.directories) > EVENTS_MAX:
            self._overflow()

    def _overflow(self) -> None:
        self._events = WatchEvents(set(), set(), set(), is_overflown=True)

    def _unwatch_tree(self, path: bytes) -> None:
        """A directory that moves keeps its watches, and their events would carry its old path. If it moves within
        the tree, the event of its arrival leads to a scan, which watches it again."""
        below = path + b"/"
        for watched in [w for w in self._watched if w == path or w.startswith(below)]:
            self._unwatch(watched)

    def _unwatch(self, directory: bytes) -> None:
        descriptor = self._watched.pop(directory)
        paths = self._paths.get(descriptor, set())
        paths.discard(directory)
        if not paths:
            self._paths.pop(descriptor, None)
            # An error means that the kernel has removed the watch already.
            inotify_rm_watch(self._fd, cast("WatchDescriptor", descriptor))


def _parse(buffer: bytes) -> Iterator[_KernelEvent]:
    at = 0
    while at < len(buffer):
        descriptor, mask, _, length = _HEADER.unpack_from(buffer, at)
        at += _HEADER.size + length
        yield descriptor, mask, buffer[at - length : at].rstrip(b"\0")


def _last_error() -> OSError:
    number = ctypes.get_errno()
    advice = {
        errno.ENOSPC: "the limit of watches is reached; raise fs.inotify.max_user_watches",
        errno.EMFILE: "the limit of inotify instances is reached; raise fs.inotify.max_user_instances",
    }
    return OSError(number, advice.get(number, os.strerror(number)))
