"""The file of one attempt, held open: what a handler opens through it is the file that was checked.

The descriptor refers to that file even if its name is renamed or replaced. It is closed when the attempt has ended; the
kernel closes it when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
from typing import IO, Any, NamedTuple

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

    def open(
        self,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """A new file object, as open() returns it. Its `name` is the name of the file."""
        name = os.fsdecode(self.path)
        return open(name, mode, buffering, encoding, errors, newline, opener=lambda _, flags: self._reopened(flags))

    def close(self) -> None:
        """May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _reopened(self, flags: int) -> int:
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
