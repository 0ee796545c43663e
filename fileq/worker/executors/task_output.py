"""What one task has printed, in a thread of the worker or in a child: each line becomes an event while the handler
runs, and the end is kept for its record.

Bounded, however much a handler prints: 8 KiB are kept, a line is cut at 4 KiB, and at most 200 lines a second become
events. The others are counted, and one event a second reports their number. Nothing is stored for a task that succeeds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from msgspec.structs import replace

from fileq.core.events import Emit, HandlerOutputSkipped, HandlerPrinted, OutputIds, output_ids
from fileq.core.job import decode_or_none
from fileq.core.outcome import Died, Failed, Ran, Task
from fileq.handlers.output import Tail, capture_logging, task_sink

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
        return replace(ran, output=output)
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
