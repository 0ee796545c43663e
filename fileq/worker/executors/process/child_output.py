"""The worker's end of the output pipes of its children, and the thread that reads them.

The thread makes lines appear while a handler runs. The pump reads a pipe only when an outcome says that output is left
in it, or when the child has ended or is about to be killed: its last words count. Reads are bounded: a handler that
prints without end waits for its pipe, and neither the pump nor the memory of the worker suffers.

A task's output is what is read between begin() and end(). While a child has several tasks, the thread does not read its
pipe. At the end of a task the child writes the mark TaskEnd, but only if the pipe still holds output. The pump reads up
to that mark, and keeps what it has read behind it for the next task. If a task left no mark, it printed nothing, or the
pump had read its whole output together with that of the task before: then its output is all that was kept.

A process that a handler left behind may hold the pipe open. Nothing waits for the end of the pipe.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque

from msgspec.structs import replace

from fileq.core.events import Emit
from fileq.core.outcome import Failed
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.messages import READ_SIZE
from fileq.worker.executors.process.output_marks import (
    HandlerStack,
    LoggedRecord,
    Mark,
    OutputSplitter,
    TaskEnd,
    new_secret,
)
from fileq.worker.executors.stop_request import TIMEOUT
from fileq.worker.executors.task_output import TaskOutput, with_output

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
