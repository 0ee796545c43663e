"""Looks at a job's file right before its handler runs: is it there, is it ours, is it still the same. Opens nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from fileq.core.errors import Permanent
from fileq.core.outcome import Changed, Failed
from fileq.files.version import signature_of
from fileq.handlers.endings import failed
from fileq.handlers.task import Task

# One look gives where a path really leads and what is there, of the same file, and costs a third of realpath.
_HAS_PROC = os.path.isdir("/proc/self/fd")


def objection(task: Task, signature: str | None) -> Failed | Changed | None:
    """Why this task must not run, or None. `signature` is the version the job is about, if it says."""
    try:
        try:
            real, status = _look(task.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            real, status = os.path.realpath(task.path), None
        if not _is_below(real, task.roots):
            return _outside(task)
    except OSError as error:
        return failed(error)
    except ValueError as error:  # a NUL in the name
        return failed(Permanent(f"no file can have this name: {error}"))
    if status is None:
        return Failed("file vanished", "FileVanished", is_sample=False)
    if not stat.S_ISREG(status.st_mode):
        return Failed("not a regular file", "NotAFile", is_permanent=True, is_sample=False)
    current = signature_of(status)
    if signature is not None and signature != current and not task.runs_changed:
        return Changed(current)
    return None


def _outside(task: Task) -> Failed:
    path, roots = os.fsdecode(task.path), ", ".join(map(os.fsdecode, task.roots))
    shown = f"{path!r} leads outside the allowed roots ({roots})".encode("utf-8", "backslashreplace").decode()
    return Failed(shown, "OutsideRoots", is_permanent=True, is_sample=False)


def _is_below(real: bytes, roots: Iterable[bytes]) -> bool:
    return any(real.startswith(_real(root).rstrip(b"/") + b"/") for root in roots)


def _real(path: bytes) -> bytes:
    try:
        return _look(path)[0]
    except OSError:
        return os.path.realpath(path)


def _look(path: bytes) -> tuple[bytes, os.stat_result]:
    if not _HAS_PROC:
        return os.path.realpath(path), os.stat(path)
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # names it without opening it: no right is needed, no pipe hangs
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd), os.fstat(fd)
    finally:
        os.close(fd)
