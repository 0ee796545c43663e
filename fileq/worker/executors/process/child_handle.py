"""The worker's handle on one child: its process, its stream, and the task it runs.

The executor has one handle for each task that it can run at a time. When a child ends or is killed, the handle gets
another child. Nothing here blocks, and nothing here starts a child: child_pool.py does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

import msgspec

from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.child_output import ChildOutput
from fileq.worker.executors.process.messages import (
    HEADER,
    MAX_OUTCOME_BYTES,
    OUTPUT_IS_LEFT,
    READ_SIZE,
    STACK_SIGNAL,
    WAKE_SIGNAL,
    decode_ran,
    framed,
)
from fileq.worker.executors.stop_request import StopRequest

NEVER_S = float("inf")


class InvalidMessage(Exception):
    """A child wrote something that the protocol does not allow."""


class UnsendableTask(Exception):
    """A task that can't be made into a message: the fault of that one job."""


class ChildHandle:
    """`child` is the fork server's number for the child; 0 while there is none. Times are by time.monotonic()."""

    __slots__ = (
        "child",
        "failed_starts",
        "fd",
        "inbox",
        "is_ready",
        "jobs_done",
        "kill_at_s",
        "outbox",
        "output",
        "output_is_left",
        "pid",
        "pidfd",
        "spawn_at_s",
        "stop_request",
        "stream",
        "task",
        "task_number",
        "was_task_read",
    )

    def __init__(self) -> None:
        self.stream: socket.socket | None = None
        self.task: Task | None = None
        self.stop_request = StopRequest.NONE
        self.kill_at_s = NEVER_S  # when the child is killed if the task still runs
        self.spawn_at_s = 0.0  # when the next child may be requested
        self.failed_starts = 0  # children in a row that ended before they were given a task
        self.outbox: bytes | memoryview = b""
        self.output: ChildOutput | None = None
        self._reset()

    @property
    def was_used(self) -> bool:
        """Whether this child was ever given a task."""
        return self.task_number > 0

    @property
    def is_running(self) -> bool:
        """Whether the child was given the task; a task may also wait for a child that is not ready yet."""
        return self.task is not None and self.is_ready

    @property
    def is_readable(self) -> bool:
        """Whether the stream holds data now. Asks the kernel: the epoll may not have reported it yet."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def open_stream(self, child: int) -> socket.socket:
        """Make the stream of a new child; returns the child's end."""
        self.stream, child_end = socket.socketpair()
        self.stream.setblocking(False)
        child_end.setblocking(True)
        self.fd = self.stream.fileno()
        self.child = child
        return child_end

    def set_process(self, pid: int, pidfd: int) -> None:
        """The fork server reports the process. The child may have become ready and got its task before that."""
        self.pid, self.pidfd = pid, pidfd
        if self.stop_request is not StopRequest.NONE:
            self.wake()

    def send_task(self, number: int, task: Task, kill_at_s: float) -> bool:
        """Give the child its task; False if flush() must send the rest later.

        Raises BrokenPipeError if the child has ended, and UnsendableTask without any effect."""
        try:
            message = framed(number, task)
        except Exception as error:
            raise UnsendableTask(f"can't be sent to a child process: {error!r}") from error
        self.task = task
        self.task_number = number
        if self.output is not None:
            self.output.begin(task)
        self.stop_request = StopRequest.NONE
        self.output_is_left = False
        self.kill_at_s = kill_at_s
        return self._send(message)

    def request_stop(self, request: StopRequest, kill_at_s: float) -> bool:
        """Have the child set context.cancelled; False as for send_task(). Never moves `kill_at_s` to a later time."""
        self.stop_request = request
        self.kill_at_s = min(self.kill_at_s, kill_at_s)
        try:
            return self._send(HEADER.pack(0, self.task_number))
        except BrokenPipeError:
            return True  # the child has ended, and the fork server reports how
        finally:
            self.wake()

    def with_output(self, ran: Ran) -> Ran:
        """The outcome of the task with what its handler printed. `output_is_left`: the pipe must be read for it."""
        if self.output is None:
            return ran
        return self.output.finish(ran, self.task_number, reads=self.output_is_left)

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

    def receive(self) -> Ran | None:
        """Read once. Returns the outcome once all of it is there; sets `is_ready` when the child says so.

        Raises InvalidMessage, EOFError or BlockingIOError."""
        try:
            block = os.read(self.fd, READ_SIZE)
        except ConnectionResetError:
            # Linux reports this when the other end closed before it had read everything.
            self.was_task_read = False
            block = b""
        if not block:
            raise EOFError
        inbox: bytes | bytearray = block
        if self.inbox:
            self.inbox += block
            inbox = self.inbox
        if len(inbox) >= HEADER.size:
            length, number = HEADER.unpack_from(inbox)
            if length >= OUTPUT_IS_LEFT:
                length -= OUTPUT_IS_LEFT
                self.output_is_left = True
            size = HEADER.size + length
            if not length:
                self._set_ready(number, len(inbox))
                return None
            if number != self.task_number or self.task is None or length > MAX_OUTCOME_BYTES or len(inbox) > size:
                raise InvalidMessage
            if len(inbox) == size:
                return self._outcome(inbox)
        if not self.inbox:
            self.inbox += block
        return None

    def kill(self) -> None:
        """Kill the child. Its own children become the fork server's, which kills them."""
        self._signal(signal.SIGKILL)

    def wake(self) -> None:
        """Have the child read its stream.

        One signal may have no effect: when it arrives just before the interpreter starts to wait, its handler runs
        only after another signal ends that wait. So the executor resends it until the task has ended."""
        self._signal(WAKE_SIGNAL)

    def ask_for_stack(self) -> None:
        """Have the child report where its handler is, see stack_report.py."""
        self._signal(STACK_SIGNAL)

    def discard_child(self) -> None:
        """Forget the child, and keep a task that it was not given. May be called twice."""
        if self.stream is not None:
            self.stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.output is not None:
            self.output.close()
        self._reset()

    def _reset(self) -> None:
        self.stream = None
        self.child = self.task_number = 0
        self.fd = self.pidfd = self.pid = -1
        self.output = None
        self.output_is_left = False
        self.is_ready = False
        self.jobs_done = 0
        self.was_task_read = True
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

    def _set_ready(self, number: int, size: int) -> None:
        if self.is_ready or number or size != HEADER.size:
            raise InvalidMessage
        self.is_ready = True
        self.inbox.clear()

    def _outcome(self, message: bytes | bytearray) -> Ran:
        try:
            ran = decode_ran.decode(memoryview(message)[HEADER.size :])
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidMessage from error
        if self.inbox:
            self.inbox = bytearray()
        return ran

    def _signal(self, number: int) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
