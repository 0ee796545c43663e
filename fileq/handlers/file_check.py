"""Opens a job's file right before its handler runs, and checks it: it exists, lies below an allowed root, is unchanged.

What is checked is the open descriptor, so no other file can take its place between the check and the handler. The file
is not opened for reading: a pipe would block, and a handler may need no permission to read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from fileq.core.errors import Permanent
from fileq.core.outcome import Changed, Failed
from fileq.core.text import quoted_path
from fileq.files.beneath import LeadsOutside, is_below, open_beneath
from fileq.files.paths import MISSING, NOT_A_DIRECTORY, directory_problem
from fileq.files.version import changed_version
from fileq.handlers.job_file import JobFile
from fileq.handlers.outcomes import failed


def open_file(path: bytes, roots: Sequence[bytes], signature: str | None = None) -> JobFile | Failed | Changed:
    """The file, or why a handler must not run on it. With a `signature` the file must still be that version."""
    try:
        fd = open_beneath(path, roots)
    except LeadsOutside:
        return _outside(path, roots)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            return failed(OSError(error.errno, error.strerror, os.fsdecode(path)))  # it names a part of the path only
        try:
            return _missing(path, roots)
        except OSError as changing:  # a link of the path was replaced while it was read
            return failed(changing)
    except ValueError as error:  # a NUL in the name
        return failed(Permanent(f"no file can have this name: {error}"))
    try:
        problem = _problem(path, os.fstat(fd), signature)
    except OSError as error:  # a network file system has lost it
        problem = failed(error)
    if problem is None:
        return JobFile(path, fd)
    os.close(fd)
    return problem


def check_file(path: bytes, roots: Sequence[bytes]) -> Failed | None:
    """Why a handler would not run on this file now, or None. Outside the roots the answer is the same, whatever is
    there: the caller may be a client that must not learn it."""
    if b"\0" not in path and not is_below(os.path.realpath(path), roots):
        return _outside(path, roots)
    found = open_file(path, roots)
    if isinstance(found, JobFile):
        found.close()
        return None
    return found if isinstance(found, Failed) else None


def _problem(path: bytes, status: os.stat_result, signature: str | None) -> Failed | Changed | None:
    if not stat.S_ISREG(status.st_mode):
        return Failed("not a regular file", "NotAFile", is_permanent=True, is_sample=False)
    if signature is not None and (now := changed_version(path, status, signature)) is not None:
        return Changed(now)
    return None


def _missing(path: bytes, roots: Sequence[bytes]) -> Failed:
    """Vanished only if its root exists: with an unmounted volume all files are missing, and they come back."""
    real_path = os.path.realpath(path)
    root = next((root for root in roots if is_below(real_path, (root,))), None)
    if root is None:
        return _outside(path, roots)
    problem = directory_problem(root)
    if not problem:
        return Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)
    what = "is missing" if problem in (MISSING, NOT_A_DIRECTORY) else problem
    return Failed(f"the root {os.fsdecode(root)!r} {what}", "RootMissing", is_sample=False)


def _outside(path: bytes, roots: Sequence[bytes]) -> Failed:
    allowed = ", ".join(map(os.fsdecode, roots))
    text = f"{quoted_path(path)} leads outside the allowed roots ({allowed})"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return Failed(shown, "OutsideRoots", is_permanent=True, is_sample=False)
