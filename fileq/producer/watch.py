"""Hears from the kernel what happens in directories. Decides nothing: it collects, and says when it may miss some.

Directories are watched as a scan enters them, so there is no moment between the listing and the watch in which a file
could slip through. Only what matters is asked for: files closed after writing, created or moved in, and directories
that come and go.

The inotify calls are watchdog's; the loop is ours, because its own warns of every watch that is renewed, takes a
refused one for granted, and knows one name for a directory, where two may lead to it.
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

if TYPE_CHECKING:  # watchdog 7 has them, and before that they were plain integers
    from watchdog.observers.inotify_c import Mask, WatchDescriptor

MOST_HEARD = 50_000  # paths kept between two looks; beyond, a scan is cheaper and memory is not
EXHAUSTED = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # the kernel has no more watches to give
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
_Event: TypeAlias = tuple[int, int, bytes]  # watch descriptor, mask, name within the directory


class Heard(Struct):
    """What has happened since the last look."""

    closed: set[bytes]  # written and closed, or moved in
    created: set[bytes]  # there, and perhaps still being written
    directories: set[bytes]  # new, and not listed yet
    is_overflown: bool = False  # events were lost: only a scan knows what happened


class Watcher:
    """The watches of one producer, and the thread that reads what they say."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._paths: dict[int, set[bytes]] = {}  # several, where links lead to the same directory
        self._watched: dict[bytes, int] = {}
        self._heard = Heard(set(), set(), set())
        self._fd = inotify_init()
        if self._fd == -1:
            raise _error()
        os.set_inheritable(self._fd, False)
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._read, name="inotify", daemon=True)
        self._thread.start()

    def watch(self, directory: bytes) -> None:
        """Hear of this directory's own entries from now on; again, if it may have been replaced.

        Raises OSError when the kernel has no more watches to give."""
        # Under the lock, so that no event is read before its directory is known.
        with self._lock:
            descriptor = inotify_add_watch(self._fd, directory, _MASK)
            if descriptor == -1:
                error = _error()
                if error.errno in EXHAUSTED:
                    raise error
                return  # gone or forbidden: the listing that follows says so
            if self._watched.get(directory, descriptor) != descriptor:
                self._unwatch(directory)
            self._paths.setdefault(descriptor, set()).add(directory)
            self._watched[directory] = descriptor

    def take(self) -> Heard:
        with self._lock:
            heard, self._heard = self._heard, Heard(set(), set(), set())
            return heard

    def __len__(self) -> int:
        return len(self._watched)

    def close(self) -> None:
        """May be called twice."""
        if self._fd == -1:
            return
        os.write(self._end, b"!")
        self._thread.join()
        for fd in (self._fd, self._ending, self._end):
            os.close(fd)
        self._fd = -1

    # in the reading thread

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        while self._ending not in (ready := [fd for fd, _ in poll.poll()]):
            if self._fd in ready:
                events = list(_parsed(os.read(self._fd, _READ_BYTES)))
                with self._lock:
                    for event in events:
                        self._note(*event)
                self._wake.set()

    def _note(self, descriptor: int, mask: int, name: bytes) -> None:
        if mask & In.IN_Q_OVERFLOW:
            self._overflow()
        elif mask & In.IN_IGNORED:
            for directory in self._paths.pop(descriptor, ()):
                if self._watched.get(directory) == descriptor:
                    del self._watched[directory]
        elif name:
            for directory in tuple(self._paths.get(descriptor, ())):
                self._note_entry(os.path.join(directory, name), mask)

    def _note_entry(self, path: bytes, mask: int) -> None:
        heard = self._heard
        if mask & In.IN_ISDIR:
            if mask & In.IN_MOVED_FROM:
                self._unwatch_below(path)
            elif mask & (In.IN_CREATE | In.IN_MOVED_TO):
                heard.directories.add(path)
        elif mask & (In.IN_CLOSE_WRITE | In.IN_MOVED_TO):
            heard.closed.add(path)
        elif mask & In.IN_CREATE:
            heard.created.add(path)
        if len(heard.closed) + len(heard.created) + len(heard.directories) > MOST_HEARD:
            self._overflow()

    def _overflow(self) -> None:
        self._heard = Heard(set(), set(), set(), is_overflown=True)

    def _unwatch_below(self, path: bytes) -> None:
        """A directory that moves takes its watches along, and they would speak of it by its old name. If it stays
        within the tree, its arrival is heard of too, and the scan watches it anew."""
        below = path + b"/"
        for watched in [w for w in self._watched if w == path or w.startswith(below)]:
            self._unwatch(watched)

    def _unwatch(self, directory: bytes) -> None:
        descriptor = self._watched.pop(directory)
        names = self._paths.get(descriptor, set())
        names.discard(directory)
        if not names:
            self._paths.pop(descriptor, None)
            inotify_rm_watch(self._fd, cast("WatchDescriptor", descriptor))  # an error: it has gone by itself


def _parsed(buffer: bytes) -> Iterator[_Event]:
    at = 0
    while at < len(buffer):
        descriptor, mask, _, length = _HEADER.unpack_from(buffer, at)
        at += _HEADER.size + length
        yield descriptor, mask, buffer[at - length : at].rstrip(b"\0")


def _error() -> OSError:
    number = ctypes.get_errno()
    hint = {
        errno.ENOSPC: "the limit of watches is reached; raise fs.inotify.max_user_watches",
        errno.EMFILE: "the limit of inotify instances is reached; raise fs.inotify.max_user_instances",
    }
    return OSError(number, hint.get(number, os.strerror(number)))
