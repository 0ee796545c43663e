"""One place of the process executor: the child that is there now, its stream, and the task it runs.

The child is replaced when it ended or had to be killed; the place stays. Nothing here blocks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

import msgspec

from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.messages import BLOCK, DOORBELL, HEADER, LONGEST_RAN, decode_ran, framed
from fileq.worker.executors.stop_request import Asked

NEVER_S = float("inf")


class Garbage(Exception):
    """A child said what no child of ours says."""


class Place:
    """`child` is the number the fork server knows the child by; 0 while there is none."""

    __slots__ = (
        "asked",
        "child",
        "ends_s",
        "failures",
        "fd",
        "inbox",
        "is_ready",
        "number",
        "outbox",
        "pid",
        "pidfd",
        "starts_s",
        "stream",
        "task",
        "was_task_read",
    )

    def __init__(self) -> None:
        self.stream: socket.socket | None = None
        self.task: Task | None = None
        self.asked = Asked.NOTHING
        self.ends_s = NEVER_S  # when the task is ended by force
        self.starts_s = 0.0  # when the next child may be asked for
        self.failures = 0  # children in a row that ended before they had done anything
        self.outbox: bytes | memoryview = b""
        self._forget()

    @property
    def has_worked(self) -> bool:
        """Whether this child was ever given a task."""
        return self.number > 0

    @property
    def is_running(self) -> bool:
        """Whether the task was given to the child; a child that is not ready has not begun anything."""
        return self.task is not None and self.is_ready

    @property
    def has_word(self) -> bool:
        """Whether there is something to hear: one that may have ended is asked this, not the epoll."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def open(self, child: int) -> socket.socket:
        """A stream for a new child; returns the child's end."""
        self.stream, theirs = socket.socketpair()
        self.stream.setblocking(False)
        theirs.setblocking(True)
        self.fd = self.stream.fileno()
        self.child = child
        return theirs

    def spawned(self, pid: int, pidfd: int) -> None:
        """The child may have been faster than this news of it, and be at work."""
        self.pid, self.pidfd = pid, pidfd
        if self.asked is not Asked.NOTHING:
            self.ring()

    def start(self, number: int, task: Task, ends_s: float) -> bool:
        """Give the child its task; False if part of it must wait until the child reads.
        Raises BrokenPipeError if there is nobody to read it."""
        self.task = task
        self.number = number
        self.asked = Asked.NOTHING
        self.ends_s = ends_s
        return self._say(framed(number, task))

    def ask(self, asked: Asked, ends_s: float) -> bool:
        """Set context.cancelled in the child; False as for start()."""
        self.asked = asked
        self.ends_s = min(self.ends_s, ends_s)
        try:
            return self._say(HEADER.pack(0, self.number))
        except BrokenPipeError:
            return True  # what became of the child, the fork server tells
        finally:
            self.ring()

    def flush(self) -> bool:
        """Go on with what could not be said at once; False while there is more."""
        outbox, self.outbox = self.outbox, b""
        try:
            is_said = self._say(outbox)
        except BrokenPipeError:
            return True
        if is_said and self.asked is not Asked.NOTHING:
            self.ring()  # the doorbell rang before there was anything to read
        return is_said

    def hear(self) -> Ran | None:
        """Read once. The outcome, if it is whole by now; ready is noted. Raises Garbage, EOFError, BlockingIOError."""
        try:
            block = os.read(self.fd, BLOCK)
        except ConnectionResetError:
            # The kernel's word for an end that came before everything was read.
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
            size = HEADER.size + length
            if not length:
                self._is_ready_now(number, len(inbox))
                return None
            if number != self.number or self.task is None or length > LONGEST_RAN or len(inbox) > size:
                raise Garbage
            if len(inbox) == size:
                return self._outcome(inbox)
        if not self.inbox:
            self.inbox += block
        return None

    def kill(self) -> None:
        """The child only: what it leaves becomes the fork server's, and is killed there."""
        self._signal(signal.SIGKILL)

    def vacate(self) -> None:
        """Forget the child; a task that it was not given stays. May be called twice."""
        if self.stream is not None:
            self.stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self._forget()

    def _forget(self) -> None:
        self.stream = None
        self.child = self.number = 0
        self.fd = self.pidfd = self.pid = -1
        self.is_ready = False
        self.was_task_read = True
        self.inbox = bytearray()
        self.outbox = b""

    def _say(self, message: bytes | bytearray | memoryview) -> bool:
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

    def _is_ready_now(self, number: int, size: int) -> None:
        if self.is_ready or number or size != HEADER.size:
            raise Garbage
        self.is_ready = True
        self.inbox.clear()

    def _outcome(self, message: bytes | bytearray) -> Ran:
        try:
            ran = decode_ran.decode(memoryview(message)[HEADER.size :])
        except (msgspec.DecodeError, ValueError) as error:
            raise Garbage from error
        if self.inbox:
            self.inbox = bytearray()
        return ran

    def ring(self) -> None:
        """Have the child look at its stream. One ring can go unheard: a signal that comes while the interpreter is on
        its way into a wait is handled only when another ends that wait. So whoever asks rings until he is heard."""
        self._signal(DOORBELL)

    def _signal(self, number: int) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
