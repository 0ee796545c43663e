"""The tokens of one child's tasks: the side that reads a task's token, child or worker, decides where the task runs.

A token is the number of its task in four bytes of a pipe. The worker writes the tokens before the tasks. The child
reads one token before it begins a task. The worker reads those that are left, to take back the tasks that wait behind a
slow one. The kernel gives each token, as a whole, to one reader only. So no task runs in two places.

Both ends are non-blocking and close-on-exec. The worker opens the pipe for both directions, so it never ends, and a
kill -9 of the child leaves the tokens of the tasks that it has not begun.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from fcntl import F_SETPIPE_SZ, fcntl

_TOKEN = struct.Struct("<I")
TOKEN_SIZE = _TOKEN.size
MAX_TOKENS = 64  # at the same time; far fewer than fit into one page


class TaskTokens:
    """The worker's side. `fd` can be written to, as poll() sees it, only while no token is left. `child_end` is for
    the child; close it here once the child has it."""

    def __init__(self) -> None:
        self.child_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # One page. A pipe can be written to while a page of it is free.
            fcntl(self.child_end, F_SETPIPE_SZ, 1)
            # One descriptor for both directions: a worker may have hundreds of children.
            self.fd = os.open(f"/proc/self/fd/{self.child_end}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            self.close_child_end()
            raise
        finally:
            os.close(write_end)

    def put(self, numbers: Iterable[int]) -> None:
        """Call it before the tasks are sent, and only when no token is left."""
        os.write(self.fd, b"".join(map(_TOKEN.pack, numbers)))

    def take_back(self, limit: int = MAX_TOKENS) -> list[int]:
        """Takes at most `limit` of the numbers that are left. The child begins none of these tasks."""
        try:
            left = os.read(self.fd, limit * TOKEN_SIZE) if limit else b""
        except BlockingIOError:
            return []
        return [number for (number,) in _TOKEN.iter_unpack(left)]

    def close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def close(self) -> None:
        """Call it once."""
        self.close_child_end()
        os.close(self.fd)


class TokenReader:
    """The child's side. Never call it in a copy of the child that a handler forked."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._token = b""  # a token that was read ahead: it is of a later task than take() was asked about

    def take(self, number: bytes | bytearray) -> bool:
        """Whether the task with this number, four bytes of its message, is this child's. Ask in the order of the tasks.

        False if the worker took the task back. The next token is then missing, or that of a later task."""
        if not self._token:
            try:
                self._token = os.read(self._fd, TOKEN_SIZE)
            except BlockingIOError:
                return False
        if self._token != number:
            return False
        self._token = b""
        return True
