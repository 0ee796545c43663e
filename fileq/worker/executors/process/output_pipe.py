"""The output pipe of a child: stdout, stderr and `logging` of handlers go there, and the worker reads it.

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
import select
import sys
import threading
from collections.abc import Iterator
from fcntl import ioctl
from termios import FIONREAD
from types import FrameType
from typing import TypeAlias

import msgspec
from msgspec import Struct

from fileq.handlers.output import capture_logging, set_process_sink
from fileq.handlers.tracebacks import cut_middle, place_of

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


def is_same(fd: int, known: os.stat_result) -> bool:
    """Whether a descriptor is open and refers to the file that it referred to when `known` was its os.fstat():
    a handler may have closed it and opened another file."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return status.st_ino == known.st_ino and status.st_dev == known.st_dev


# The format of a child's output pipe: what handlers print, as it is, and marks of the child between it.
#
# A mark is a secret of this child, one JSON object and a newline: a record of `logging`, the end of a task, or where
# its handler is. A handler that prints something similar does not know the secret, so its line stays a line. A mark
# is written by one call and is not longer than PIPE_BUF: the kernel never mixes it with the output of another
# process.


_START = b"\x1e"  # is not in the rest of a mark, so a mark that is cut is found by its start
_LONGEST_LOGGER = 200


class LoggedRecord(Struct, frozen=True, tag=True, array_like=True):
    level: str
    logger: str
    text: str


class TaskEnd(Struct, frozen=True, tag=True, array_like=True):
    """Everything before it was printed by the task of this number or by earlier ones."""

    number: int


class HandlerStack(Struct, frozen=True, tag=True, array_like=True):
    """Where the handler is: the answer to STACK_SIGNAL."""

    text: str


Mark: TypeAlias = LoggedRecord | TaskEnd | HandlerStack
_decoder: msgspec.json.Decoder[Mark] = msgspec.json.Decoder(Mark)
_encoder = msgspec.json.Encoder()


def new_secret() -> bytes:
    return _START + os.urandom(12).hex().encode()


def encode_record(secret: bytes, level: str, logger: str, text: str) -> bytes:
    """The record as a mark; a text that is too long loses its end."""
    text, logger = (s.encode("utf-8", "backslashreplace").decode() for s in (text, logger[:_LONGEST_LOGGER]))
    text = text[: select.PIPE_BUF]
    while len(mark := _encoded(secret, LoggedRecord(level, logger, text))) > select.PIPE_BUF:
        text = text[: len(text) * 3 // 4] + "…"
    return mark


def encode_end(secret: bytes, number: int) -> bytes:
    return _encoded(secret, TaskEnd(number))


def encode_stack(secret: bytes, text: str) -> bytes:
    """The stack as a mark; a text that is too long loses its middle."""
    longest = select.PIPE_BUF
    while len(mark := _encoded(secret, HandlerStack(cut_middle(text, longest)))) > select.PIPE_BUF:
        longest = longest * 3 // 4
    return mark


def _encoded(secret: bytes, mark: Mark) -> bytes:
    return secret + _encoder.encode(mark) + b"\n"


class OutputSplitter:
    """Parts what handlers printed from the marks, however the reads have cut the pipe's content."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._rest = b""  # the beginning of a mark, or of what may become one

    def feed(self, block: bytes) -> Iterator[bytes | Mark]:
        data = self._rest + block if self._rest else block
        self._rest = b""
        while (at := data.find(self._secret)) >= 0:
            end = data.find(b"\n", at)
            if end < 0:
                break
            if at:
                yield data[:at]
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # not written by the child
                yield _decoder.decode(data[at + len(self._secret) : end])
            data = data[end + 1 :]
        kept = at if at >= 0 else self._possible_start(data)
        if kept < len(data) - select.PIPE_BUF:
            kept = len(data)  # longer than any mark
        self._rest = data[kept:]
        if kept:
            yield data[:kept]

    def _possible_start(self, data: bytes) -> int:
        """Where a mark that is not complete may begin; the length of the data if nowhere."""
        at = data.rfind(_START, max(0, len(data) - len(self._secret)))
        return at if at >= 0 and self._secret.startswith(data[at:]) else len(data)


# Where a handler is when its time is up: the worker asks by a signal, and the child answers in its output pipe.
#
# The signal handler runs in the main thread, which runs the handler of the job or waits for it (place_of). A
# call in C that does not return to the interpreter delays the signal handler; then there is no answer. The pump does
# not block: it kills the child a moment later, and reads what is in the pipe by then. Without `worker.capture_output`
# there is no pipe, and nothing is asked.


class StackReporter:
    """The signal handler of a child."""

    def __init__(self, output: OutputPipe | None) -> None:
        self._output = output

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        # No text: the child is between two tasks, because the signal came too late.
        if self._output is not None and (text := place_of(threading.get_ident(), frame)):
            self._output.report_stack(text)
