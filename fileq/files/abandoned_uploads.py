"""Removes what uploads left behind whose server was killed: files with the private names of arriving_file.py.

A server may share the directory with others, on this machine or on another one. So a file is removed only if nothing
was written to it for ABANDONED_S and no process holds its lock. Links are not followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator

from fileq.files.exclusive_move import PREFIX, SUFFIX

UPLOAD = b"upload"  # begins the key in the private name of an upload
ABANDONED_S = 3600.0  # a server writes at the latest after a MiB, and gives up a client that sends nothing for a minute
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def hold(fd: int) -> None:
    """Marks the open file as one that a server writes to. Where the file system has no locks, only its age counts."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_abandoned(top: bytes, now_s: float, is_stopping: Callable[[], bool] = lambda: False) -> int:
    """How many files were removed from the directory and those below it. What can't be read or removed stays."""
    count = 0
    for path in _uploads_below(top, is_stopping):
        try:
            if _is_abandoned(path, now_s):
                os.unlink(path)
                count += 1
        except OSError:
            continue  # committed or discarded in this moment, or not ours to remove
    return count


def _uploads_below(top: bytes, is_stopping: Callable[[], bool]) -> Iterator[bytes]:
    for directory, _, names in os.walk(top):
        if is_stopping():
            return
        for name in names:
            if name.startswith(PREFIX + UPLOAD) and name.endswith(SUFFIX):
                yield os.path.join(directory, name)


def _is_abandoned(path: bytes, now_s: float) -> bool:
    fd = os.open(path, _OPEN)
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
