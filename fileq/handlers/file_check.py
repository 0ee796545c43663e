"""Checks a job's file right before its handler runs: it exists, lies below an allowed root and is unchanged.

Never opens the file for reading: a pipe would block, and the check needs no permission to read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from fileq.core.errors import Permanent
from fileq.core.outcome import Changed, Failed
from fileq.files.version import signature_of
from fileq.handlers.outcomes import failed

# With /proc one descriptor gives both the real path and the status of the same file, at a third of realpath's cost.
HAS_PROC = os.path.isdir("/proc/self/fd")


def check_file(path: bytes, roots: Sequence[bytes], signature: str | None = None) -> Failed | Changed | None:
    """Why a handler must not run on this file, or None. With a `signature` the file must still be that version."""
    try:
        try:
            real_path, status = _resolve(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            real_path, status = os.path.realpath(path), None
        if not _is_below(real_path, roots):
            return _outside(path, roots)
    except OSError as error:
        return failed(error)
    except ValueError as error:  # a NUL in the name
        return failed(Permanent(f"no file can have this name: {error}"))
    if status is None:
        return _missing(real_path, roots)
    if not stat.S_ISREG(status.st_mode):
        return Failed("not a regular file", "NotAFile", is_permanent=True, is_sample=False)
    if signature is not None and signature != (current := signature_of(status)):
        return Changed(current)
    return None


def _missing(real_path: bytes, roots: Sequence[bytes]) -> Failed:
    """Vanished only if its root exists: with an unmounted volume all files are missing, and they come back."""
    root = next(root for root in roots if _is_below(real_path, (root,)))
    if os.path.isdir(root):
        return Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)
    return Failed(f"the root {os.fsdecode(root)!r} is missing", "RootMissing", is_sample=False)


def _outside(path: bytes, roots: Sequence[bytes]) -> Failed:
    allowed = ", ".join(map(os.fsdecode, roots))
    text = f"{os.fsdecode(path)!r} leads outside the allowed roots ({allowed})"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return Failed(shown, "OutsideRoots", is_permanent=True, is_sample=False)


def _is_below(real_path: bytes, roots: Iterable[bytes]) -> bool:
    return any(real_path.startswith(_real_path(root).rstrip(b"/") + b"/") for root in roots)


def _real_path(path: bytes) -> bytes:
    try:
        return _resolve(path)[0]
    except OSError:
        return os.path.realpath(path)


def _resolve(path: bytes) -> tuple[bytes, os.stat_result]:
    if not HAS_PROC:
        return os.path.realpath(path), os.stat(path)
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # a reference only: needs no permission and never blocks
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd), os.fstat(fd)
    finally:
        os.close(fd)
