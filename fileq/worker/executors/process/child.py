"""A child: runs one task after the other for the worker at the other end of its stream. Knows nothing of brokers.

What a handler may do to it, and what follows:
1. It leaves processes behind: they are killed before the outcome is told. All of them are found, because orphans below
   this process become its children (prctl.adopt_orphans); without children, one system call says so.
2. It forks and lets the copy return: the copy ends here, only the process the worker knows speaks.
3. It closes the stream: the outcome can't be told, so the child ends, and the fork server tells the worker of that.
   The descriptor may be another file by now; nothing is written to it before it was looked at.
4. It replaces signal handlers: ours are put back after it.

Cancelling. The worker writes which task to stop and rings DOORBELL. The signal's handler runs in the main thread
between two steps of the user's handler, perhaps within context.cancelled, whose lock is not reentrant: so it does not
set the event but starts a thread that does. One that comes too late stands before the next task in the stream and is
skipped there.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub
import _thread
import contextlib
import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from types import FrameType
from typing import NoReturn

import msgspec

from fileq.core.errors import ConfigError
from fileq.core.outcome import Failed
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import failed
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.descendants import children_of, end_children, has_children
from fileq.worker.executors.process.messages import (
    BLOCK,
    DOORBELL,
    EXIT_CUT_OFF,
    HEADER,
    LONGEST_RAN,
    READY,
    decode_task,
    framed,
)
from fileq.worker.executors.process.prctl import adopt_orphans, die_with_parent, set_name
from fileq.worker.executors.process.program import Program, Run

# From a terminal, or from a service manager that means the worker and tells every process it finds.
NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LEFTOVERS_PATIENCE_S = 2.0


def do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs started from here would inherit."""


def become_deaf() -> None:
    for number in NOT_FOR_US:
        signal.signal(number, do_nothing)


def become_child(server_pid: int) -> None:
    """What makes a process one of the fork server's: it ends with it, and leads its own session."""
    os.setsid()
    die_with_parent(server_pid)
    adopt_orphans()
    become_deaf()
    set_name("fileq-child")


class Child:
    """The loop. `spared` are processes that importing the handlers started: they are no task's leftovers."""

    def __init__(self, stream: int, run: Run, spared: Collection[int] = ()) -> None:
        self._stream = stream
        self._run = run
        self._spared = frozenset(spared)
        self._pid = os.getpid()
        self._identity = _identity(stream)
        self._inbox = bytearray()
        self._cancelled: LazyEvent | None = None  # of the task that runs
        self._was_rung = False
        self._is_looking = False
        self._signals: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(NOT_FOR_US, do_nothing)
        self._signals[DOORBELL] = self._on_doorbell

    def serve(self) -> NoReturn:
        try:
            self._listen()
            os.write(self._stream, READY)
            while True:
                self._turn()
        except ConnectionError:
            os._exit(0)  # the worker gave this child up

    def _turn(self) -> None:
        number, task = self._receive()
        ran = self._ran(task)
        if os.getpid() != self._pid:
            os._exit(0)
        if has_children():
            self._end_leftovers()
        self._listen()
        flush_output()
        self._send(_message(number, ran))

    def _ran(self, task: Task) -> Ran:
        cancelled = self._cancelled = LazyEvent()
        try:
            if self._was_rung or self._inbox:
                self._was_rung = True
                self._look()
            return self._run(task, cancelled)
        except BaseException as error:
            return failed(error)
        finally:
            self._cancelled = None

    def _end_leftovers(self) -> None:
        if not end_children(self._spared | _resource_tracker(), patience_s=LEFTOVERS_PATIENCE_S):
            # Asleep in the kernel, killed when they wake up; or another user's. The next task does not wait for them.
            self._spared = frozenset(children_of(self._pid))

    def _receive(self) -> tuple[int, Task]:
        inbox = self._inbox
        while True:
            while len(inbox) >= HEADER.size:
                length, number = HEADER.unpack_from(inbox)
                if len(inbox) < HEADER.size + length:
                    break
                body = inbox[HEADER.size : HEADER.size + length]
                del inbox[: HEADER.size + length]
                if length:  # else a cancellation that came too late
                    return number, decode_task(body)
            block = os.read(self._stream, BLOCK)
            if not block:
                os._exit(0)
            inbox += block

    def _send(self, message: bytearray) -> None:
        if _identity(self._stream) != self._identity:
            os._exit(EXIT_CUT_OFF)
        left = memoryview(message)
        while left:
            left = left[os.write(self._stream, left) :]

    def _listen(self) -> None:
        for number, handler in self._signals.items():
            # Not signal.getsignal, which makes an enumeration's member of it, for more than all the rest of a turn.
            if _signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def _on_doorbell(self, _number: int, _frame: FrameType | None) -> None:
        self._was_rung = True
        # While no task runs, _receive reads the stream, and _ran looks again before it runs one.
        if self._cancelled is not None and not self._is_looking:
            self._look()

    def _look(self) -> None:
        """Read what came in while a task runs: nothing but cancellations. May be interrupted by the doorbell."""
        while self._was_rung:
            self._is_looking = True
            self._was_rung = False
            if self._is_cancelled() and self._cancelled is not None:
                _thread.start_new_thread(self._cancelled.set, ())
            self._is_looking = False

    def _is_cancelled(self) -> bool:
        inbox = self._inbox
        if _identity(self._stream) == self._identity:
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            if poll.poll(0):
                inbox += os.read(self._stream, BLOCK)
        whole = len(inbox) // HEADER.size * HEADER.size
        del inbox[:whole]
        return whole > 0


def _resource_tracker() -> set[int]:
    """multiprocessing's, which belongs to the process and not to a task; killed, it would come back with a warning."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    pid = getattr(tracker, "_pid", None)
    return set() if pid is None else {pid}


def _message(number: int, ran: Ran) -> bytearray:
    """The outcome as a message. One that can't be sent becomes a failure that says so."""
    try:
        message = framed(number, ran)
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, ValueError) as error:
        return framed(number, failed(error))
    if len(message) > LONGEST_RAN:
        text = f"its outcome has {len(message)} bytes; {LONGEST_RAN} can be sent"
        return framed(number, Failed(text, "OutcomeTooLong"))
    return message


def _identity(fd: int) -> tuple[int, int] | None:
    """Which file a descriptor is; None for none. Sockets have numbers of their own."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def show_output_by_line() -> None:
    """What a handler printed before it crashed is seen, too."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def flush_output() -> None:
    """What a handler printed is seen now, not with its next line; its stdout may be anything. stderr keeps nothing."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def main() -> NoReturn:
    """A child in a fresh interpreter, for handlers that can't be forked because importing them started threads."""
    stream, program_fd, server_pid = map(int, sys.argv[1:])
    sys.argv[1:] = []
    for fd in (stream, program_fd):
        os.set_inheritable(fd, False)
    become_child(server_pid)
    show_output_by_line()
    try:
        run = read_program(program_fd).load()
        Child(stream, run, children_of(os.getpid())).serve()
    except ConfigError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(1)


def read_program(fd: int) -> Program:
    """By position: all children of a server read the same descriptor."""
    content = b""
    while block := os.pread(fd, BLOCK, len(content)):
        content += block
    return msgspec.msgpack.decode(content, type=Program)
