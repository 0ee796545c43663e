"""Tells whether a descriptor is still the one that it was: a handler may have closed it and opened another file."""

from __future__ import annotations

import os


def is_same(fd: int, known: os.stat_result) -> bool:
    """Whether a descriptor is open and refers to the file that it referred to when `known` was its os.fstat()."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return status.st_ino == known.st_ino and status.st_dev == known.st_dev
