"""The output pipe of a child, both ends: stdout, stderr and `logging` of handlers go there, and the worker reads it.

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
import time
from collections import deque
from collections.abc import Iterator
from fcntl import ioctl
from termios import FIONREAD
from types import FrameType
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.core.events import Emit
from fileq.core.outcome import TIMEOUT, Failed, Ran, Task
from fileq.handlers.output import capture_logging, set_process_sink
from fileq.handlers.tracebacks import cut_middle, place_of
from fileq.worker.executors.process.messages import READ_SIZE
from fileq.worker.executors.task_output import TaskOutput, with_output

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

    def report_stack(self, _number: int, frame: FrameType | None) -> None:
        """The handler of STACK_SIGNAL: reports where the handler of the task is, when its time is up.

        It runs in the main thread, which runs the handler of the job or waits for it (place_of). A call in C that does
        not return to the interpreter delays it; then there is no answer. The pump does not block: it kills the child a
        moment later, and reads what is in the pipe by then. Without `worker.capture_output` there is no pipe, and
        nothing is asked."""
        if text := place_of(threading.get_ident(), frame):  # none between two tasks: the signal came too late
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


# The worker's end of the output pipes of its children, and the thread that reads them.
#
# The thread makes lines appear while a handler runs. The pump reads a pipe only when an outcome says that output is
# left in it, or when the child has ended or is about to be killed: its last words count. Reads are bounded: a handler
# that prints without end waits for its pipe, and neither the pump nor the memory of the worker suffers.
#
# A task's output is what is read between begin() and end(). While a child has several tasks, the thread does not read
# its pipe. At the end of a task the child writes the mark TaskEnd, but only if the pipe still holds output. The pump
# reads up to that mark, and keeps what it has read behind it for the next task. If a task left no mark, it printed
# nothing, or the pump had read its whole output together with that of the task before: then its output is all that
# was kept.
#
# A process that a handler left behind may hold the pipe open. Nothing waits for the end of the pipe.


_MAX_LAST_READS = 32  # after the end of a child: a process that it left may go on writing
# The thread lets output gather, so that tiny tasks that print do not compete with it for the GIL.
_PAUSE_S, _BUSY_PAUSE_S = 0.01, 0.001


class ChildOutput:
    """The output of one child. The thread calls read(), the pump everything else."""

    def __init__(self, reader: OutputReader, emit: Emit) -> None:
        self._reader = reader
        self._emit = emit
        self.fd, self.child_end = os.pipe()
        os.set_blocking(self.fd, False)
        self.secret = new_secret()
        self._splitter = OutputSplitter(self.secret)
        self._parts: deque[bytes | Mark] = deque()  # read, but not assigned to a task yet
        self._is_alone = True
        self._task: Task | None = None
        self._printed: TaskOutput | None = None
        self._stack = ""  # where its handler was when the worker asked
        self._last_end = 0  # number of the last task whose end was read
        self._is_open = True
        self._lock = threading.Lock()

    def begin(self, task: Task, *, is_alone: bool = True) -> None:
        """What is read from now on was printed by this task. Call it before the task is sent. `is_alone` is False if
        the child gets other tasks with it; call it again when the task has become the only one."""
        if task is not self._task:
            if self._printed is not None:
                self.end(0, reads=False)
            self._task = task
            self._stack = ""
        if is_alone is not self._is_alone:
            with self._lock:  # so that the thread does not read now
                self._is_alone = is_alone
                if is_alone:
                    self._assign()

    def end(self, number: int, *, reads: bool) -> str:
        """The last part of what the task has printed; "" if it was nothing. With `reads`, first reads the pipe up to
        the TaskEnd of this number. The number is 0 for a task that the child was not given."""
        with self._lock:
            left = _MAX_LAST_READS if reads else 0
            if number:
                self._assign(number)
            while left and self._last_end != number and self._read() > 0:
                self._assign(number)
                left -= 1
            task, self._task = self._task, None
            printed, self._printed = self._printed, None
        output = printed.end() if printed is not None else ""
        return output if task is not None else ""

    def finish(self, ran: Ran, number: int, *, reads: bool, with_stack: bool) -> Ran:
        """The outcome of the task, with its output if it failed."""
        # A silent task needs no lock: the pipe was empty at its end, and the thread holds the lock from before it reads
        # until `_printed` has what it read.
        if not (reads or self._lock.locked() or self._stack) and self._printed is None and not self._parts:
            self._task = None
            return ran
        output = self.end(number, reads=reads)
        if with_stack and self.has_stack and isinstance(ran, Failed) and ran.kind == TIMEOUT:
            ran = replace(ran, traceback=self._stack)
        return with_output(ran, output) if output else ran

    @property
    def has_stack(self) -> bool:
        """Whether the child has reported where the handler of the task is."""
        return bool(self._stack)

    def read(self) -> int:
        """Reads once, in the thread. Returns the number of bytes; 0 at the end of the pipe, -1 if it is empty."""
        with self._lock:
            if not self._is_alone:
                return -1
            count = self._read()
            self._assign()
            if count == 0:
                self._reader.remove(self)
            return count

    def close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def close(self) -> None:
        """May be called twice."""
        self.close_child_end()
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._reader.remove(self)
                os.close(self.fd)

    def _read(self) -> int:
        if not self._is_open:
            return -1
        try:
            block = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return -1
        self._parts.extend(self._splitter.feed(block))
        return len(block)

    def _assign(self, last: int = 0) -> None:
        """Assigns what was read to the current task: all of it, or only what precedes the TaskEnd of task `last`."""
        while self._parts:
            part = self._parts.popleft()
            if isinstance(part, TaskEnd):
                self._last_end = part.number
                if part.number == last:
                    return
                continue
            if isinstance(part, HandlerStack):
                self._stack = part.text
                continue
            if self._printed is None:
                self._printed = TaskOutput(self._task, self._emit)
            if isinstance(part, LoggedRecord):
                self._printed.log(part.level, part.logger, part.text)
            else:
                self._printed.write(part)


class OutputReader:
    """One thread that reads the pipes of all children. close() ends it."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._outputs: dict[int, ChildOutput] = {}
        self._epoll = select.epoll()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._stop_fd, select.EPOLLIN)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def open(self) -> ChildOutput:
        """A pipe for a new child."""
        output = ChildOutput(self, self._emit)
        self._outputs[output.fd] = output
        self._epoll.register(output.fd, select.EPOLLIN)
        return output

    def remove(self, output: ChildOutput) -> None:
        """May be called twice."""
        if self._outputs.pop(output.fd, None) is not None:
            self._epoll.unregister(output.fd)

    def close(self) -> None:
        """Call it after all outputs are closed."""
        self._is_stopping = True
        os.eventfd_write(self._stop_fd, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._stop_fd)

    def _run(self) -> None:
        while True:
            ready = self._epoll.poll()
            if self._is_stopping:
                return
            longest = 0
            for fd, _ in ready:
                if (output := self._outputs.get(fd)) is not None:
                    longest = max(longest, output.read())
            time.sleep(_BUSY_PAUSE_S if longest == READ_SIZE else _PAUSE_S)
