"""What one task has printed, in a thread of the worker or in a child: each line becomes an event while the handler
runs, and the end is kept for its record.

Bounded, however much a handler prints: 8 KiB are kept, a line is cut at 4 KiB, and at most 200 lines a second become
events. The others are counted, and one event a second reports their number. Nothing is stored for a task that succeeds.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

import msgspec
from msgspec.structs import replace

from fileq.core.events import Emit, HandlerOutputSkipped, HandlerPrinted, OutputIds, output_ids
from fileq.core.job import decode_or_none
from fileq.core.outcome import TIMEOUT, Died, Failed, Ran, Task
from fileq.handlers.output import Tail, capture_logging, task_sink
from fileq.worker.executors.process.messages import READ_SIZE
from fileq.worker.executors.process.output_pipe import (
    HandlerStack,
    LoggedRecord,
    Mark,
    OutputSplitter,
    TaskEnd,
    new_secret,
)

TAIL = 8 * 1024  # bytes of UTF-8
LONGEST_LINE = 4 * 1024  # bytes
LINES_A_SECOND = 200
_MARK = "…"


class TaskOutput:
    """`task` is None for what a child prints between two tasks. Any thread may call any method."""

    def __init__(self, task: Task | None, emit: Emit, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._task = task
        self._emit = emit
        self._monotonic = monotonic
        self._ids: OutputIds | None = None
        self._tail = Tail(TAIL - len(_MARK.encode()))
        self._line = bytearray()  # the beginning of a line whose end is still to come
        self._second_s = float("-inf")  # when the current second began
        self._line_count = 0  # events in this second
        self._skipped = 0
        # Reentrant: a listener may use `logging` itself.
        self._lock = threading.RLock()

    def write(self, data: bytes) -> None:
        """Takes any part of what was printed."""
        with self._lock:
            self._tail.add(data)
            now_s = self._monotonic()
            start = 0
            while (end := data.find(b"\n", start)) >= 0:
                if not self._has_room(now_s):
                    self._skipped += data.count(b"\n", start)
                    self._line.clear()
                    start = data.rfind(b"\n") + 1
                    break
                self._begin_line(data[start:end])
                self._end_line()
                start = end + 1
            self._begin_line(data[start:])

    def log(self, level: str, logger: str, text: str) -> None:
        """Takes one record of `logging`, which may have several lines."""
        encoded = text.encode("utf-8", "backslashreplace")
        with self._lock:
            self._tail.add(encoded + b"\n")
            if self._has_room(self._monotonic()):
                self._report(_cut(encoded), level, logger)
            else:
                self._skipped += 1

    def end(self) -> str:
        """Reports what is left, and returns the last 8 KiB of everything."""
        with self._lock:
            if self._line and self._has_room(self._monotonic()):
                self._end_line()
            self._report_skipped()
            text = self._tail.text().rstrip("\n")
        encoded = text.encode()
        if len(encoded) <= TAIL:
            return text
        # Bytes that are not UTF-8 become characters of three bytes.
        return _MARK + encoded[len(_MARK.encode()) - TAIL :].decode(errors="ignore")

    def _begin_line(self, part: bytes) -> None:
        self._line += part[: LONGEST_LINE + 1 - len(self._line)]

    def _end_line(self) -> None:
        # As on a terminal: of a progress bar that returns to the start of its line the last state stays.
        shown = bytes(self._line).rstrip(b"\r").rpartition(b"\r")[2]
        self._line.clear()
        if shown.strip():
            self._report(_cut(shown), "info", None)

    def _report(self, text: str, level: str, logger: str | None) -> None:
        self._line_count += 1
        self._emit(HandlerPrinted(*self._named(), text, level, logger))

    def _has_room(self, now_s: float) -> bool:
        """Whether one more line may become an event in this second."""
        if now_s - self._second_s >= 1.0:
            self._report_skipped()
            self._second_s, self._line_count = now_s, 0
        return self._line_count < LINES_A_SECOND

    def _report_skipped(self) -> None:
        if self._skipped:
            self._emit(HandlerOutputSkipped(*self._named(), self._skipped))
            self._skipped = 0

    def _named(self) -> OutputIds:
        if self._ids is None:
            task = self._task
            known = (decode_or_none(task.raw), task.key.slot) if task is not None else (None, None)
            self._ids = output_ids(*known)
        return self._ids


def with_output(ran: Ran, output: str) -> Ran:
    """The outcome with what its handler printed, if it is one that keeps it: a failure or a death."""
    if output and isinstance(ran, Failed | Died):
        return msgspec.structs.replace(ran, output=output)
    return ran


def _cut(line: bytes) -> str:
    if len(line) <= LONGEST_LINE:
        return line.decode("utf-8", "replace")
    return line[:LONGEST_LINE].decode("utf-8", "ignore") + _MARK


# What handlers print in threads of the worker: finds the task that prints, and passes its output to its sink.
#
# While a thread executor is open, sys.stdout and sys.stderr are CapturedStreams. A context variable names the task of
# the calling code. It belongs to the handler's thread, and asyncio gives it to the handler's coroutines and to
# asyncio.to_thread(). Everything else writes to the real streams: the worker itself, threads that a handler starts,
# and programs and C code, which write to the descriptors 1 and 2. Those belong to the whole process and can't be
# captured for one task.

_lock = threading.Lock()
_captured: list[CapturedStream] = []  # those that install() has put in place
_users = 0  # executors that need them


class CapturedStream:
    """Stands for stdout or stderr: passes what a task writes to its sink, and everything else to the real stream."""

    def __init__(self, stream: TextIO) -> None:
        self.uncaptured = stream  # log lines of fileq go there, see observe/logs.py

    def write(self, text: str) -> int:
        if (sink := task_sink.get()) is None:
            return self.uncaptured.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        sink.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return task_sink.get() is None and self.uncaptured.isatty()

    @property
    def buffer(self) -> _CapturedBuffer:
        return _CapturedBuffer(self.uncaptured.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.uncaptured, name)


class _CapturedBuffer:
    """The same for bytes."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def write(self, data: Any) -> int:
        if (sink := task_sink.get()) is None:
            return cast(int, self._buffer.write(data))
        content = bytes(memoryview(data))
        sink.write(content)
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)


def install() -> None:
    """Capture stdout, stderr and `logging` of tasks. Each call needs one of uninstall().

    Call it after the handlers are imported: their modules may configure logging."""
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for name in ("stdout", "stderr"):
            if (stream := getattr(sys, name)) is not None:
                setattr(sys, name, captured := CapturedStream(stream))
                _captured.append(captured)
    capture_logging()


def uninstall() -> None:
    """Puts the real streams back, unless a program has replaced them meanwhile."""
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if any(stream is captured for captured in _captured):
                setattr(sys, name, stream.uncaptured)
        _captured.clear()


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

    def finish(self, ran: Ran, number: int, *, reads: bool) -> Ran:
        """The outcome of the task, with its output if it failed."""
        # A silent task needs no lock: the pipe was empty at its end, and the thread holds the lock from before it reads
        # until `_printed` has what it read.
        if not reads and not self._lock.locked() and self._printed is None and not self._parts:
            self._task = None
            return ran
        output = self.end(number, reads=reads)
        if self.has_stack and isinstance(ran, Failed) and ran.kind == TIMEOUT:
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
