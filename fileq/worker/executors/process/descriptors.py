"""Tells whether a descriptor is still the one that it was: a handler may have closed it and opened another file."""

from __future__ import annotations

import os


def identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of an open descriptor, unique also for sockets and pipes; None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
