"""The child's end of its output pipe: stdout, stderr and `logging` of handlers go there, and the worker reads it.

Programs that a handler starts inherit the pipe as their stdout and stderr. A write waits while the pipe is full. At the
end of a task one system call tells whether the pipe still holds output. Only then does the child write the end of the
task into it, and the outcome says that the worker must read the pipe first. So a silent task costs the worker nothing.

What a handler may do to it: it may close or replace the descriptors. The child then writes no mark and reports no
output; what it can't find is not captured.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from fcntl import ioctl
from termios import FIONREAD

from fileq.handlers.output import capture_logging, set_process_sink
from fileq.worker.executors.process.descriptors import is_same
from fileq.worker.executors.process.output_marks import encode_end, encode_record, encode_stack

_SIZE = bytearray(4)  # what FIONREAD writes: an int
_NOTHING = bytes(4)


class OutputPipe:
    """`fd` is the end to write to. Logs of fileq itself still go to the stderr that the process had before. Without
    `captures` so does what handlers print, and only report_stack() writes into the pipe."""

    def __init__(self, fd: int, secret: bytes, *, captures: bool = True) -> None:
        self._fd = fd
        self._secret = secret
        self._status = os.fstat(fd)
        self._captures = captures

    def install(self) -> None:
        """Make the pipe stdout and stderr of this process, and of the programs that it starts."""
        if not self._captures:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        real = open(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  # kept to the end
        with contextlib.suppress(AttributeError):
            sys.stderr.uncaptured = real  # type: ignore[union-attr]  # see observe/logs.py
        os.dup2(self._fd, 1)
        os.dup2(self._fd, 2)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        set_process_sink(self)
        capture_logging()

    def write(self, data: bytes) -> None:
        if not is_same(self._fd, self._status):
            return
        # A handler may have made its stdout non-blocking, which is this pipe.
        os.set_blocking(self._fd, True)
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def log(self, level: str, logger: str, text: str) -> None:
        self.write(encode_record(self._secret, level, logger, text))

    def report_stack(self, text: str) -> None:
        self.write(encode_stack(self._secret, text))

    def end_task(self, number: int) -> bool:
        """Whether the worker must read the pipe before it applies the outcome of this task."""
        try:
            ioctl(self._fd, FIONREAD, _SIZE)
            if _SIZE == _NOTHING:
                return False
            self.write(encode_end(self._secret, number))
        except OSError:
            return False
        return True
