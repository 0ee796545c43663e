"""Runs a part of a test without the privileges of root, whom permissions do not stop."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
_PR_SET_DUMPABLE = 4


@contextmanager
def unprivileged() -> Iterator[None]:
    """As another user than root, for the processes that are started meanwhile too."""
    if os.geteuid() != 0:
        yield
        return
    _become(NOBODY)
    try:
        yield
    finally:
        _become(0)


def _become(user: int) -> None:
    os.setresuid(user, user, 0)
    # A change of the user takes /proc/self/fd from the process, which a program that starts as this user has.
    assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Like tmp_path, but every user can reach and change it."""
    directory = Path(tempfile.mkdtemp(prefix="fileq-open-")).resolve()
    directory.chmod(0o777)
    yield directory
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(directory)
