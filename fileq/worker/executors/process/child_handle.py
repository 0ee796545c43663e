"""The worker's handle on one child: its process, its stream, and its tasks.

The executor has one handle for each task that it can run at a time. When a child ends or is killed, the handle gets
another child. Nothing here starts a child: child_pool.py does. Nothing here blocks, but for waits with a timeout.

A child may be sent several tasks at once. It runs them in order. `task` is the one whose outcome comes next, `queued`
are those behind it. take_back() takes back tasks that the child has not begun, until it has one task only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from fileq.core.outcome import TIMEOUT, Failed, Ran, Task, TaskOutcome, timed_out
from fileq.core.settlement import StopRequest, outcome_after
from fileq.worker.executors.process.messages import (
    HEADER,
    MAX_OUTCOME_BYTES,
    NUMBER_LIMIT,
    OUTPUT_IS_LEFT,
    READ_SIZE,
    STACK_SIGNAL,
    WAKE_SIGNAL,
    TaskTokens,
    append_message,
    decode_ran,
)
from fileq.worker.executors.process.output_pipe import ChildOutput

NEVER_S = float("inf")
STACK_ASKS = 5  # signals: one may have no effect (see wake()), or a busy machine has no core for the child
STACK_ANSWER_S = 0.05  # how long the child may take after each signal


class InvalidMessage(Exception):
    """A child wrote something that the protocol does not allow."""


class UnsendableTask(Exception):
    """A task that can't be made into a message: the fault of that one job."""


class ChildHandle:
    """`child` is the fork server's number for the child; 0 while there is none. Times are by time.monotonic()."""

    def __init__(self) -> None:
        self.stream: socket.socket | None = None
        self.inbox = bytearray()
        self.task_number = self.last_number = 0  # of `task`; of the last task that this child was given
        self.tokens: TaskTokens | None = None
        self.task: Task | None = None
        self.queued: deque[tuple[int, Task]] = deque()
        self.stop_request = StopRequest.NONE
        self.kill_at_s = NEVER_S  # when the child is killed if the task still runs
        self.spawn_at_s = 0.0  # when the next child may be requested
        self.failed_starts = 0  # children in a row that ended before they were given a task
        self.outbox: bytes | memoryview = b""
        self.output: ChildOutput | None = None
        self.times = ThreadTimes(-1)
        self._stack_asks = 0
        self._reset()

    @property
    def was_used(self) -> bool:
        """Whether this child was ever given a task."""
        return self.last_number > 0

    @property
    def is_running(self) -> bool:
        """Whether the child was given the task; a task may also wait for a child that is not ready yet."""
        return self.task is not None and self.is_ready

    def is_readable(self, timeout_ms: int = 0) -> bool:
        """Whether the stream holds data now. Asks the kernel: the epoll may not have reported it yet."""
        return any(event & select.POLLIN for _, event in self.poll.poll(timeout_ms))

    def wait_until_taken(self, timeout_ms: int) -> bool:
        """Wait until the child has begun the last of its tasks; False if it has ended, or if the time is up before.

        Waits for the tokens, not for the stream: each outcome in the stream would wake the worker, and a wake-up costs
        more than a tiny task."""
        return any(event & select.POLLOUT for _, event in self.tokens_poll.poll(timeout_ms))

    def is_nearly_done(self) -> bool:
        """Whether the child has begun the last of its tasks, or has ended."""
        return bool(self.tokens_poll.poll(0))

    def has_begun(self) -> bool:
        """Whether the child, which has ended, had begun its only task. Call it once."""
        return self.tokens is None or not self.tokens.take_back()

    def open_stream(self, child: int) -> tuple[socket.socket, TaskTokens]:
        """Make the stream and the tokens of a new child; returns the child's end of the stream, and the tokens."""
        self.tokens = TaskTokens()
        self.stream, child_end = socket.socketpair()
        self.stream.setblocking(False)
        child_end.setblocking(True)
        self.fd = self.stream.fileno()
        self.poll, self.tokens_poll = select.poll(), select.poll()
        self.poll.register(self.fd, select.POLLIN)
        self.tokens_poll.register(self.tokens.fd, select.POLLOUT)
        self.tokens_poll.register(self.fd, 0)  # so that the end of the stream ends the wait
        self.child = child
        return child_end, self.tokens

    def set_process(self, pid: int, pidfd: int) -> None:
        """The fork server reports the process. The child may have become ready and got its task before that."""
        self.pid, self.pidfd = pid, pidfd
        self.times.close()
        self.times = ThreadTimes(pid)
        if self.stop_request is not StopRequest.NONE:
            self.wake()

    def send(self, tasks: Sequence[Task]) -> bool:
        """Give the child its tasks, in one write; False if flush() must send the rest later.

        Raises BrokenPipeError if the child has ended, and UnsendableTask without any effect."""
        number, messages, numbers = self.last_number, bytearray(), []
        try:
            for task in tasks:
                number = number % (NUMBER_LIMIT - 1) + 1
                append_message(messages, number, task)
                numbers.append(number)
        except Exception as error:
            raise UnsendableTask(f"can't be sent to a child process: {error!r}") from error
        self.last_number = number
        self.queued.extend(zip(numbers, tasks, strict=True))
        if self.tokens is not None:
            self.tokens.put(numbers)
        self.begin_next()
        return self._send(messages)

    def take_back(self) -> list[Task]:
        """Takes back the tasks that the child has not begun. It keeps the one that it runs, or the last one.

        The outcomes of the tasks before that one are then in the stream: a child sends each before the next token."""
        numbers = self.tokens.take_back(len(self.queued)) if self.tokens is not None else []
        if not numbers or self.task is None:
            return []
        tasks = [(self.task_number, self.task), *self.queued]
        self.queued = deque(pair for pair in tasks if pair[0] not in numbers)
        if self.queued[0][0] == self.task_number:
            self.queued.popleft()
            if self.output is not None:
                self.output.begin(self.task, is_alone=not self.queued)
        else:
            self.begin_next()
        return [task for number, task in tasks if number in numbers]

    def request_stop(self, request: StopRequest, kill_at_s: float) -> bool:
        """Have the child set context.cancelled; False as for send(). Never moves `kill_at_s` to a later time."""
        self.stop_request = request
        self.kill_at_s = min(self.kill_at_s, kill_at_s)
        try:
            return self._send(HEADER.pack(0, self.task_number))
        except BrokenPipeError:
            return True  # the child has ended, and the fork server reports how
        finally:
            self.wake()

    def finish(
        self, request: StopRequest, ran: Ran, ended: list[tuple[Task, TaskOutcome]], *, with_stack: bool = True
    ) -> None:
        """Add the task, if there is one, with its outcome and what its handler printed. The next one begins.

        A timeout gets the stack that the child has reported, if `with_stack`. Reads the output pipe first if
        `output_is_left`."""
        if self.output is not None:
            ran = self.output.finish(ran, self.task_number, reads=self.output_is_left, with_stack=with_stack)
        if self.task is not None:
            ended.append((self.task, outcome_after(request, ran)))
        self.begin_next()

    def flush(self) -> bool:
        """Send what is left in the outbox; False while more is left."""
        outbox, self.outbox = self.outbox, b""
        try:
            is_sent = self._send(outbox)
        except BrokenPipeError:
            return True
        if is_sent and self.stop_request is not StopRequest.NONE:
            self.wake()  # the first signal came before the stop request was in the stream
        return is_sent

    def receive(self, ended: list[tuple[Task, TaskOutcome]]) -> None:
        """Read once. Appends the outcomes that are there as a whole; sets `is_ready` when the child says so.

        Raises InvalidMessage, EOFError or BlockingIOError."""
        try:
            block = os.read(self.fd, READ_SIZE)
        except ConnectionResetError:  # Linux reports this when the other end closed before it had read everything
            block = b""
        if not block:
            raise EOFError
        inbox: bytes | bytearray = block
        if self.inbox:
            self.inbox += block
            inbox = self.inbox
        at, size = 0, len(inbox)
        while size - at >= HEADER.size:
            length, number = HEADER.unpack_from(inbox, at)
            self.output_is_left = length >= OUTPUT_IS_LEFT
            length &= ~OUTPUT_IS_LEFT
            if not length:
                self._set_ready(number)
            elif number != self.task_number or self.task is None or not number or length > MAX_OUTCOME_BYTES:
                raise InvalidMessage
            elif size - at < HEADER.size + length:
                break
            else:
                try:
                    ran = decode_ran.decode(memoryview(inbox)[at + HEADER.size : at + HEADER.size + length])
                except (msgspec.DecodeError, ValueError) as error:
                    raise InvalidMessage from error
                # A command, or a coroutine, may have noticed by itself that its time is up. Any other outcome after the
                # question came too late, and the signal may have ended what the task waited for.
                is_own = not self._stack_asks or (isinstance(ran, Failed) and ran.kind == TIMEOUT)
                self.jobs_done += 1
                self.failed_starts = 0
                ran = ran if is_own else timed_out(self.task.timeout_s)
                self.finish(self.stop_request, ran, ended, with_stack=not is_own)
            at += HEADER.size + length
        if at < size and self.task is None:
            raise InvalidMessage
        if at < size or self.inbox:
            self.inbox = self.inbox if self.inbox and not at else bytearray(inbox[at:])

    def kill(self) -> None:
        """Kill the child. Its own children become the fork server's, which kills them."""
        self._signal(signal.SIGKILL)

    def wake(self) -> None:
        """Have the child read its stream.

        One signal may have no effect: when it arrives just before the interpreter starts to wait, its handler runs
        only after another signal ends that wait. So the executor resends it until the task has ended."""
        self._signal(WAKE_SIGNAL)

    def ask_for_stack(self, now_s: float) -> bool:
        """Asks a child whose time is up where its handler is (output_pipe.py), and gives it a moment more. False if it
        is to be killed now. Its outcome counts no more: call receive() before."""
        if self.task is None or self.output is None or self.stop_request is not StopRequest.NONE:
            return False
        if self.output.has_stack or self._stack_asks == STACK_ASKS:
            return False
        self._stack_asks += 1
        self._signal(STACK_SIGNAL)
        self.kill_at_s = now_s + STACK_ANSWER_S
        return True

    def discard_child(self) -> None:
        """Forget the child, and keep a task that it was not given. May be called twice."""
        if self.stream is not None:
            self.stream.close()
        if self.tokens is not None:
            self.tokens.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.output is not None:
            self.output.close()
        self.times.close()
        self._reset()

    def _reset(self) -> None:
        self.stream = self.tokens = None
        self.child = self.task_number = self.last_number = 0
        self.poll = self.tokens_poll = select.poll()
        self.fd = self.pidfd = self.pid = -1
        self.output = None
        self.output_is_left = False
        self.is_ready = False
        self.jobs_done = 0
        self.inbox = bytearray()
        self.outbox = b""

    def _send(self, message: bytes | bytearray | memoryview) -> bool:
        if self.outbox:
            self.outbox = bytes(self.outbox) + message
            return False
        sent = 0
        if self.stream is not None:
            with contextlib.suppress(BlockingIOError):
                sent = self.stream.send(message, socket.MSG_NOSIGNAL)
        if sent == len(message):
            return True
        self.outbox = memoryview(message)[sent:]
        return False

    def _set_ready(self, number: int) -> None:
        if self.is_ready or number:
            raise InvalidMessage
        self.is_ready = True

    def begin_next(self) -> None:
        """The next task becomes the one whose outcome is expected. Its time starts now."""
        self.stop_request = StopRequest.NONE
        self.output_is_left = False
        self._stack_asks = 0
        if self.queued:
            self.task_number, self.task = self.queued.popleft()
            self.kill_at_s = time.monotonic() + self.task.timeout_s
            if self.output is not None:
                self.output.begin(self.task, is_alone=not self.queued)
        else:
            self.task = None
            self.kill_at_s = NEVER_S

    def _signal(self, number: int) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


# How long a bundle of tasks takes, without the time in which other processes had the cores.
#
# On a busy machine a child that was woken waits for a core, often for longer than its tiny tasks take, and so does
# the pump when the child is done. Without this, such tasks would not count as tiny, and each would wake a child of
# its own, which makes a busy machine busier. Linux counts for each thread how long it ran and how long it waited for
# a core, in /proc/PID/schedstat. Where that can't be read, all time counts.
#
# Only measures: the executor decides what follows.


HELD_UP_MAX_S = 0.008  # how long the pump may wait for a child that gets no core
_RUNNABLE = b"R"


class ThreadTimes:
    """The times of one thread since it started, in nanoseconds. close() it."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid` chooses the first thread of that process; None the thread that calls read(). All times are 0 after the
        end of the thread."""
        self._pid = pid
        self._fd = -2  # not opened yet

    def read(self) -> tuple[int, int]:
        """How long it ran, and how long it waited for a core."""
        if self._fd == -2:
            self._fd = _opened(f"/proc/{self._pid or threading.get_native_id()}/schedstat")
        try:
            ran, waited, _ = os.pread(self._fd, 100, 0).split()
        except (OSError, ValueError):
            return 0, 0
        return int(ran), int(waited)

    def is_runnable(self) -> bool:
        """Whether it runs or waits for a core now."""
        fd = _opened(f"/proc/{self._pid}/stat")
        try:
            return os.pread(fd, 1000, 0).rpartition(b") ")[2].startswith(_RUNNABLE)
        except OSError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class BundleTimer:
    """Measures from its construction on."""

    def __init__(self, child: ThreadTimes, pump: ThreadTimes) -> None:
        self._child, self._pump = child, pump
        self._child_ran, self._child_waited = child.read()
        self._pump_waited = pump.read()[1]
        self.began_s = time.monotonic()

    def spent_s(self, enough_s: float) -> float:
        """Seconds since the start. If they are more than `enough_s`, without the time in which the child or the pump
        waited for a core."""
        spent_s = time.monotonic() - self.began_s
        if spent_s <= enough_s:
            return spent_s
        waited = self._child.read()[1] - self._child_waited + self._pump.read()[1] - self._pump_waited
        return max(0.0, spent_s - waited / 1e9)

    def is_held_up(self) -> bool:
        """Whether the child wants to run, and had no core for most of the time; False after HELD_UP_MAX_S.

        Linux updates the time of a running thread only every few milliseconds. So a handler that computes counts as
        held up for a moment."""
        spent_s = time.monotonic() - self.began_s
        if spent_s > HELD_UP_MAX_S or not self._child.is_runnable():
            return False
        return (self._child.read()[0] - self._child_ran) / 1e9 < spent_s / 2


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
