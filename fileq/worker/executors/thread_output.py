"""What handlers print in threads of the worker: finds the task that prints, and passes its output to a TaskOutput.

While a thread executor is open, sys.stdout and sys.stderr are CapturedStreams. A context variable names the task of the
calling code. It belongs to the handler's thread, and asyncio gives it to the handler's coroutines and to
asyncio.to_thread(). Everything else writes to the real streams: the worker itself, threads that a handler starts, and
programs and C code, which write to the descriptors 1 and 2. Those belong to the whole process and can't be captured for
one task.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

from fileq.core.events import Emit
from fileq.handlers.output import capture_logging, task_sink, uncaptured
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.task_output import TaskOutput, with_output

_lock = threading.Lock()
_captured: list[CapturedStream] = []  # those that install() has put in place
_users = 0  # executors that need them


class ThreadTaskOutput:
    """The output of one task: an OutputSink. Costs next to nothing until the task prints."""

    __slots__ = ("_emit", "_printed", "_task")

    def __init__(self, task: Task, emit: Emit) -> None:
        self._task = task
        self._emit = emit
        self._printed: TaskOutput | None = None

    def write(self, data: bytes) -> None:
        with uncaptured():  # a listener that prints is not the task
            self._output().write(data)

    def log(self, level: str, logger: str, text: str) -> None:
        with uncaptured():
            self._output().log(level, logger, text)

    def finish(self, ran: Ran) -> Ran:
        """The outcome of the task, with its output if it failed. What is printed later is reported, but not kept."""
        if self._printed is None:
            return ran
        with uncaptured():
            return with_output(ran, self._printed.end())

    def _output(self) -> TaskOutput:
        if self._printed is None:
            with _lock:  # a coroutine and a thread may print at the same time
                self._printed = self._printed or TaskOutput(self._task, self._emit)
        return self._printed


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
