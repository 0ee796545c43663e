"""Removes what uploads left behind whose server was killed: files with the private names of arriving_file.py.

A server may share the directory with others, on this machine or on another one. So a file is removed only if nothing
was written to it for ABANDONED_S and no process holds its lock. Links are not followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable

from fileq.files.beneath import open_directory
from fileq.files.exclusive_move import PREFIX, SUFFIX
from fileq.files.paths import MAX_DEPTH

UPLOAD = b"upload"  # begins the key in the private name of an upload
ABANDONED_S = 3600.0  # a server writes at the latest after a MiB, and gives up a client that sends nothing for a minute
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def hold(fd: int) -> None:
    """Marks the open file as one that a server writes to. Where the file system has no locks, only its age counts."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_abandoned(top: bytes, now_s: float, is_stopping: Callable[[], bool] = lambda: False) -> int:
    """How many files were removed from the directory and those below it. What can't be read or removed stays, and so
    does what is deeper than an upload can be."""
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
    try:
        if _is_abandoned(directory, name, now_s):
            os.unlink(name, dir_fd=directory)
            return True
    except OSError:
        pass  # committed or discarded in this moment, or not ours to remove
    return False


def _is_abandoned(directory: int, name: bytes, now_s: float) -> bool:
    fd = os.open(name, _OPEN, dir_fd=directory)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or now_s - found.st_mtime < ABANDONED_S:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without locks
        return True
    finally:
        os.close(fd)
