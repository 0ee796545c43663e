"""The file of one attempt, checked and held open: what a handler opens through it is the file that was checked.

The descriptor refers to that file even if its name is renamed or replaced. It is closed when the attempt has ended; the
kernel closes it when the process ends. The file is checked by this descriptor right before the handler runs: it exists,
lies below an allowed root, is unchanged. So no other file can take its place between the check and the handler. The
descriptor is not one for reading: a pipe would block, and a handler may need no permission to read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from fileq.core.errors import Permanent
from fileq.core.outcome import Changed, Failed, LostRoot
from fileq.core.text import quoted_path
from fileq.files.beneath import LeadsOutside, is_below, open_beneath
from fileq.files.paths import MISSING, NOT_A_DIRECTORY, directory_problem
from fileq.files.status import changed_version
from fileq.handlers.outcomes import failed

# A descriptor that only refers to a file can be opened through /proc alone. Containers and chroots may have none.
HAS_PROC = os.path.isdir("/proc/self/fd")
_FIRST_FREE = 3  # 0 to 2 would be replaced in a command
_LONGEST_NAME = 1_000  # characters of a name in a message


class GivenFile(NamedTuple):
    """What a handler is given: a path to open, valid in processes that inherit the descriptors, and the file's name."""

    path: bytes
    name: bytes
    inherited: tuple[int, ...] = ()

    def note_on(self, message: str) -> str:
        """What a message about a descriptor of the file lacks: the file's name. "" if it lacks nothing."""
        for descriptor in self.inherited:
            found = re.search(rf"/(proc/(self|thread-self|\d+)|dev)/fd/{descriptor}(?!\d)", message)
            if found and self.shown not in message:
                return f" ({found[0]} is {self.shown})"
        return ""

    @property
    def shown(self) -> str:
        """The name in a message."""
        name = self.name.decode(errors="backslashreplace")
        return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"


NO_FILE = GivenFile(b"", b"")


class JobFile:
    """Owns the descriptor of a regular file (O_PATH), which is `path` by name."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: bytes, fd: int) -> None:
        self.path = path
        self._fd = fd
        if fd < _FIRST_FREE:  # a handler has closed the standard streams
            self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            os.close(fd)

    def given(self, *, is_safe: bool) -> GivenFile:
        """The file by its descriptor, or by its name: if it need not be safe, or without /proc."""
        if not is_safe or not HAS_PROC:
            return GivenFile(self.path, self.path)
        return GivenFile(b"/proc/self/fd/%d" % self._fd, self.path, (self._fd,))

    def close(self) -> None:
        """May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def opener(self, _: str, flags: int) -> int:
        """For open(): a descriptor of this file, whatever has its name now."""
        if self._fd < 0:
            raise ValueError("the attempt has ended; its file is closed")
        if HAS_PROC:
            try:
                return os.open(b"/proc/self/fd/%d" % self._fd, flags)
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fsdecode(self.path)) from None
        # By name, but only if it is still the name of this file. Nothing is changed before that is known.
        fd = os.open(self.path, (flags | os.O_NONBLOCK) & ~(os.O_CREAT | os.O_TRUNC))
        if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            os.close(fd)
            raise FileNotFoundError(f"another file has this name now: {os.fsdecode(self.path)!r}")
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        return fd


def open_file(path: bytes, roots: Sequence[bytes], signature: str | None = None) -> JobFile | Failed | Changed:
    """The file, or why a handler must not run on it. With a `signature` the file must still be that version."""
    try:
        fd = open_beneath(path, roots)
    except LeadsOutside:
        return _outside(path, roots)
    except OSError as error:
        try:
            return _unreachable(path, roots, error)
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


def _unreachable(path: bytes, roots: Sequence[bytes], error: OSError) -> Failed:
    """Vanished only if its root exists: with an unmounted volume all files are missing, and they come back."""
    real_path = os.path.realpath(path)
    root = next((root for root in roots if is_below(real_path, (root,))), None)
    if root is not None and (problem := directory_problem(root)):
        what = "is missing" if problem in (MISSING, NOT_A_DIRECTORY) else problem
        text = f"the root {os.fsdecode(root)!r} {what}"
        return Failed(text, "RootMissing", is_sample=False, lost_root=LostRoot(root, problem))
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return failed(OSError(error.errno, error.strerror, os.fsdecode(path)))  # it names a part of the path only
    if root is None:
        return _outside(path, roots)
    return Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)


def _outside(path: bytes, roots: Sequence[bytes]) -> Failed:
    allowed = ", ".join(map(os.fsdecode, roots))
    text = f"{quoted_path(path)} leads outside the allowed roots ({allowed})"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return Failed(shown, "OutsideRoots", is_permanent=True, is_sample=False)
