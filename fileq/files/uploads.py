"""A file that arrives in parts below a directory: under a private name until it is complete and on the disk.

No link below that directory is followed. discard() leaves nothing. A kill -9 leaves a file `.fileq-upload….tmp`, which
producers never take and a server removes later, by remove_abandoned(); once the file has its name it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator

from fileq.files.beneath import open_directory
from fileq.files.exclusive_move import NEW_FILE, PREFIX, SUFFIX, Place, exists, private_name, rename_exclusively
from fileq.files.paths import MAX_DEPTH

UPLOAD = b"upload"  # begins the key in the private name of an upload
ABANDONED_S = 3600.0  # a server writes at the latest after a MiB, and gives up a client that sends nothing for a minute
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ArrivingFile:
    """Will be at `relative` below `top`. Its directories are made at the end, so the private name is in the deepest one
    that exists. The methods block; one thread at a time calls open(), write() and commit(), any calls discard()."""

    def __init__(self, top: bytes, relative: bytes) -> None:
        self._top = top
        *self._missing, self._name = relative.split(b"/")
        self.size = 0
        self.digests = {"sha-256": hashlib.sha256(), "sha-512": hashlib.sha512()}
        self._lock = threading.Lock()
        self._is_discarded = False
        self._fd = self._directory = -1
        self._private = private_name(UPLOAD.decode() + secrets.token_hex(12))

    def open(self) -> None:
        """Raises OSError, for example if a part of the path is a link or a file."""
        with self._at_work():
            self._directory = os.open(self._top, _DIRECTORY & ~os.O_NOFOLLOW)
            try:
                while self._missing and self._enter(self._missing[0]):
                    del self._missing[0]
                self._fd = os.open(self._private, NEW_FILE, 0o666, dir_fd=self._directory)
                hold(self._fd)
            except BaseException:
                os.close(self._directory)
                raise

    @property
    def is_replacing(self) -> bool:
        return not self._missing and exists(Place(self._directory, self._name))

    def write(self, data: bytes, algorithms: frozenset[str]) -> None:
        """Appends the data, and adds it to the digests of these algorithms."""
        with self._at_work():
            self.size += len(data)
            for name in algorithms:
                self.digests[name].update(data)
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]

    def commit(self, *, is_exclusive: bool) -> bool:
        """Gives the file its name, durably; True if there was none before. After an error the caller discards it.
        Raises FileExistsError if it is exclusive and there is something, and OSError (ELOOP) if that is a link: another
        program put it there, and what uploads replace are uploads."""
        with self._at_work(), contextlib.ExitStack() as opened:
            os.fsync(self._fd)
            made: list[tuple[int, bytes]] = []
            try:
                folder = self._make_directories(opened, made)
                is_new = not exists(Place(folder, self._name))
                if is_exclusive:
                    rename_exclusively(Place(self._directory, self._private), Place(folder, self._name))
                else:
                    if not is_new and stat.S_ISLNK(os.lstat(self._name, dir_fd=folder).st_mode):
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    os.rename(self._private, self._name, src_dir_fd=self._directory, dst_dir_fd=folder)
            except BaseException:
                for above, name in reversed(made):
                    with contextlib.suppress(OSError):  # another upload is in it
                        os.rmdir(name, dir_fd=above)
                raise
            for changed in {self._directory, folder, *(above for above, _ in made)}:
                os.fsync(changed)
            self._close()
        return is_new

    def discard(self) -> None:
        """Removes what has arrived; nothing after commit(). While another thread writes, that thread does it then."""
        self._is_discarded = True
        if self._lock.acquire(blocking=False):
            try:
                if self._fd >= 0:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._private, dir_fd=self._directory)
                    self._close()
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Keeps discard() from closing the file, and does afterwards what it could not do."""
        try:
            with self._lock:
                if self._is_discarded:
                    raise FileNotFoundError(errno.ENOENT, "the upload was given up")
                yield
        finally:
            if self._is_discarded:
                self.discard()

    def _make_directories(self, opened: contextlib.ExitStack, made: list[tuple[int, bytes]]) -> int:
        """The directory of the file. `made` gets those that did not exist, each with the one above it."""
        folder = self._directory
        for name in self._missing:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
                made.append((folder, name))
            folder = os.open(name, _DIRECTORY, dir_fd=folder)
            opened.callback(os.close, folder)
        return folder

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._directory)
        self._fd = self._directory = -1

    def _enter(self, name: bytes) -> bool:
        """Goes on to a directory below; False if it does not exist."""
        try:
            below = os.open(name, _DIRECTORY, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        os.close(self._directory)
        self._directory = below
        return True


def hold(fd: int) -> None:
    """Marks the open file as one that a server writes to. Where the file system has no locks, only its age counts."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_abandoned(top: bytes, now_s: float, is_stopping: Callable[[], bool] = lambda: False) -> int:
    """Removes what uploads left behind whose server was killed, from the directory and those below it, and says how
    many files that were. What can't be read or removed stays, and so does what is deeper than an upload can be.

    A server may share the directory with others, on this machine or on another one. So a file is removed only if
    nothing was written to it for ABANDONED_S and no process holds its lock. Links are not followed."""
    count, left = 0, [(top, 0)]
    while left and not is_stopping():
        directory, depth = left.pop()
        try:
            opened = open_directory(directory, (top,))
        except OSError:
            continue
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                        left.append((os.path.join(directory, name), depth + 1))
                    elif name.startswith(PREFIX + UPLOAD) and name.endswith(SUFFIX):
                        count += _remove_if_abandoned(opened, name, now_s)
        except OSError:
            continue
        finally:
            os.close(opened)
    return count


def _remove_if_abandoned(directory: int, name: bytes, now_s: float) -> bool:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # committed or discarded now, or not ours
        fd = os.open(name, _OPEN, dir_fd=directory)
        stack.callback(os.close, fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or now_s - found.st_mtime < ABANDONED_S:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without locks
        os.unlink(name, dir_fd=directory)
        return True
    return False
