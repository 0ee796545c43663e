"""The program of a child: runs one task after the other for the worker at the other end of its stream.

Knows nothing of brokers. What a handler may do to the child, and what follows:
1. It leaves processes running. The child kills them before it sends the outcome. It finds all of them, because orphans
   below it become its children (adopt_orphans). One system call tells when there are none.
2. It forks and lets the copy return. The copy exits: only the process that the worker knows sends outcomes.
3. It closes the stream. The outcome can't be sent, so the child exits, and the fork server reports that to the worker.
   The descriptor may refer to another file by then, so the child checks it before each write.
4. It changes the state of the process: the working directory, the environment, signal handlers and so on. The child
   restores it after each task, or ends if it can't: see ChildState.

Cancelling. The worker writes the number of the task to stop and sends WAKE_SIGNAL. The signal handler runs in the main
thread between two steps of the user's handler, perhaps inside context.cancelled.wait(), whose lock is not reentrant.
So the signal handler does not set the event itself, but starts a thread that does. A cancellation that arrives too late
precedes the next task in the stream, and is skipped there.

A kill -9 of the child leaves the processes of its handler to the fork server, which kills them.
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
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from types import FrameType, ModuleType
from typing import Any, NoReturn, cast

import msgspec

from fileq.core.errors import ConfigError
from fileq.core.outcome import Failed, Ran, Task
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import failed
from fileq.worker.executors.process import descendants, messages
from fileq.worker.executors.process.output_pipe import OutputPipe, is_same
from fileq.worker.executors.protocol import Run

# Sent by a terminal or a service manager to all processes of a worker. Only the worker acts on them.
WORKER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
END_LEFTOVERS_TIMEOUT_S = 2.0
# The bytes of a task's number in its header.
NUMBER = slice(messages.HEADER.size - messages.TOKEN_SIZE, messages.HEADER.size)


def do_nothing(_number: int, _frame: FrameType | None) -> None:
    """A signal handler in place of SIG_IGN, which programs started from here would inherit."""


def neutralize_signals() -> None:
    for number in WORKER_SIGNALS:
        signal.signal(number, do_nothing)


def become_child(server_pid: int) -> None:
    """Make this process a child of the fork server: it ends with the server and leads a session of its own."""
    os.setsid()
    descendants.die_with_parent(server_pid)
    descendants.adopt_orphans()
    neutralize_signals()
    descendants.set_name("fileq-child")


class Child:
    """Receives, runs and answers tasks. `spared` are processes that importing the handlers started: no task left them
    behind, so they are not killed."""

    def __init__(
        self, stream: int, tokens: int, run: Run, spared: Collection[int] = (), *, output: OutputPipe | None = None
    ) -> None:
        self._stream = stream
        self._tokens_fd = tokens
        self._tokens = messages.TokenReader(tokens)
        self._run = run
        self._spared = frozenset(spared)
        self._output = output
        self._pid = os.getpid()
        self._stream_status = os.fstat(stream)
        self._tokens_status = os.fstat(tokens)
        self._inbox = bytearray()
        self._number = 0
        self._cancelled: LazyEvent | None = None  # of the task that runs
        self._was_woken = False
        self._is_checking = False
        self._state: ChildState

    def serve(self) -> NoReturn:
        try:
            on_stack_signal: Callable[[int, FrameType | None], None] = do_nothing
            if self._output is not None:
                self._output.install()
                on_stack_signal = self._output.report_stack
            own = {messages.WAKE_SIGNAL: self._on_wake_signal, messages.STACK_SIGNAL: on_stack_signal}
            handlers = dict.fromkeys(map(int, WORKER_SIGNALS), do_nothing) | own
            self._state = ChildState(handlers)
            self._state.restore_signals()
            os.write(self._stream, messages.READY)
            while True:
                self._turn()
        except ConnectionError:
            os._exit(0)  # the worker closed the stream

    def _turn(self) -> None:
        number, task = self._receive()
        ran = self._run_task(number, task)
        if os.getpid() != self._pid:
            os._exit(0)
        self._state.restore_signals()
        if descendants.has_children():
            self._end_leftovers()
        is_open = flush_output()
        if self._state.restore_streams():
            is_open = flush_output()
        has_output = self._output is not None and self._output.end_task(number)
        self._send(_message(number, ran, has_output=has_output))
        # After the outcome was sent, so that the worker does not wait for it.
        dirty = self._state.restore()
        if dirty is not None or not is_open or not is_same(self._tokens_fd, self._tokens_status):
            os._exit(dirty or messages.DirtyExit.DESCRIPTORS)

    def _run_task(self, number: int, task: Task) -> Ran:
        self._number = number
        cancelled = self._cancelled = LazyEvent()
        try:
            if self._was_woken:
                self._check_cancelled()
            return self._run(task, cancelled)
        except BaseException as error:
            return failed(error)
        finally:
            self._cancelled = None

    def _end_leftovers(self) -> None:
        if not descendants.end_children(self._spared | _resource_tracker(), timeout_s=END_LEFTOVERS_TIMEOUT_S):
            # They sleep in the kernel and die when they wake up, or belong to another user. The next task must not
            # wait for them again.
            self._spared = frozenset(descendants.children_of(self._pid))

    def _receive(self) -> tuple[int, Task]:
        """The next task whose token this child could take. The child must run it."""
        inbox = self._inbox
        while True:
            while len(inbox) >= messages.HEADER.size:
                length, number = messages.HEADER.unpack_from(inbox)
                end = messages.HEADER.size + length
                if len(inbox) < end:
                    break
                # Otherwise it is a cancellation that arrived too late, or a task that the worker took back.
                is_mine = length and self._tokens.take(inbox[NUMBER])
                body = inbox[messages.HEADER.size : end] if is_mine else None
                del inbox[:end]
                if body is not None:
                    return number, messages.decode_task(body)
            block = os.read(self._stream, messages.READ_SIZE)
            if not block:
                os._exit(0)
            inbox += block

    def _send(self, message: bytearray) -> None:
        if not is_same(self._stream, self._stream_status):
            os._exit(messages.EXIT_STREAM_LOST)
        left = memoryview(message)
        while left:
            left = left[os.write(self._stream, left) :]

    def _on_wake_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._was_woken = True
        # While no task runs, _receive() reads the stream, and _run_task() checks again before it runs a task.
        if self._cancelled is not None and not self._is_checking:
            self._check_cancelled()

    def _check_cancelled(self) -> None:
        """Set the event of the running task if its cancellation has arrived. The signal may interrupt this."""
        while self._was_woken:
            self._is_checking = True
            self._was_woken = False
            self._read_ahead()
            if self._has_cancellation() and self._cancelled is not None:
                _thread.start_new_thread(self._cancelled.set, ())
            self._is_checking = False

    def _read_ahead(self) -> None:
        """Read the stream without waiting."""
        if is_same(self._stream, self._stream_status):
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            while poll.poll(0) and (block := os.read(self._stream, messages.READ_SIZE)):
                self._inbox += block

    def _has_cancellation(self) -> bool:
        """Whether the inbox has the cancellation of the running task; removes it. Tasks may be before it."""
        inbox, at = self._inbox, 0
        while len(inbox) - at >= messages.HEADER.size:
            length, number = messages.HEADER.unpack_from(inbox, at)
            if not length and number == self._number:
                del inbox[at : at + messages.HEADER.size]
                return True
            at += messages.HEADER.size + length
        return False


def _resource_tracker() -> set[int]:
    """The pid of multiprocessing's resource tracker, which serves the whole process and not one task.

    Killed, it would be started again with a warning."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    pid = getattr(tracker, "_pid", None)
    return set() if pid is None else {pid}


def _message(number: int, ran: Ran, *, has_output: bool = False) -> bytearray:
    """The outcome as a message. An outcome that can't be sent becomes a failure that says why."""
    try:
        message = messages.framed(number, ran, has_output=has_output)
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, ValueError) as error:
        return messages.framed(number, failed(error), has_output=has_output)
    if len(message) > messages.MAX_OUTCOME_BYTES:
        text = f"its outcome has {len(message)} bytes; {messages.MAX_OUTCOME_BYTES} can be sent"
        return messages.framed(number, Failed(text, "OutcomeTooLong"), has_output=has_output)
    return message


def set_line_buffering() -> None:
    """Write each printed line at once, so that a crash loses none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def flush_output() -> bool:
    """Write what a handler printed without a newline; False if it closed a stream. A handler may have replaced both."""
    is_open = True
    for stream in (sys.stdout, sys.stderr):
        try:  # not contextlib.suppress(), which costs as much as a flush
            stream.flush()
        except ValueError:  # "I/O operation on closed file"
            is_open = False
        except Exception:
            continue
    return is_open


def main() -> NoReturn:
    """A child in a fresh interpreter, for handlers that can't be forked because importing them started threads."""
    stream, tokens, program_fd, server_pid = map(int, sys.argv[1:5])
    program, output = read_program(program_fd), None
    if len(sys.argv) > 5:
        output = OutputPipe(int(sys.argv[5]), bytes.fromhex(sys.argv[6]), captures=not program.prints_directly)
    for fd in (stream, tokens, program_fd, *map(int, sys.argv[5:6])):
        os.set_inheritable(fd, False)
    sys.argv[1:] = []
    become_child(server_pid)
    set_line_buffering()
    try:
        run = program.load()
        Child(stream, tokens, run, descendants.children_of(os.getpid()), output=output).serve()
    except ConfigError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(1)


def read_program(fd: int) -> messages.Program:
    """Read by offset, because all children of a server share the descriptor and its position."""
    content = b""
    while block := os.pread(fd, messages.READ_SIZE, len(content)):
        content += block
    return msgspec.msgpack.decode(content, type=messages.Program)


# The state of a child's process that handlers may change: noted before the first task, restored after every task.
#
# What can't be restored is a reason to replace the child: the child ends itself with the exit status of the reason,
# after it has sent the outcome. A task that the worker has sent by then was not read, so the worker gives it to
# another child.
#
# A task that changes nothing costs a few system calls, about 3 µs. So what is cheap to set is set again without a
# look at it, and what only some processes can change is checked only in those: the user in a child of root, resource
# limits where the module `resource` is imported, threads where their number changed.


# Signals that users handle; their handlers are restored. Not SIGPROF and SIGVTALRM: nothing stops their timers, and
# with the default action restored these would end the child.
HANDLER_SIGNALS = (signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)
LIMITS = tuple(f"RLIMIT_{name}" for name in ("AS", "CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK"))
THREAD_GRACE_S = 0.02  # for threads that are about to end
STANDARD_FDS = (0, 1, 2)


class ChildState:
    """What this process is now. `handlers` are signal handlers that restore_signals() sets besides those found now."""

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        found = {int(number): _signal.getsignal(number) for number in HANDLER_SIGNALS}
        # None is a handler that a library in C has set: Python can't set it again.
        self._handlers = {number: handler for number, handler in found.items() if handler is not None} | dict(handlers)
        self._numbers, self._expected = list(self._handlers), list(self._handlers.values())
        self._mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = os.environ
        self._data: dict[bytes, bytes] = cast(Any, os.environ)._data
        self._variables = dict(self._data)
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._saved = [(saved, fd) for fd in STANDARD_FDS if (saved := _duplicate(fd)) >= 0]
        self._user = (os.getresuid(), os.getresgid()) if os.geteuid() == 0 else None
        self._limits = _limits(resource, os.getpid()) if (resource := sys.modules.get("resource")) else None
        self._threads = frozenset(threading.enumerate())
        self._base_count = self._count = _thread._count()

    def restore_signals(self) -> None:
        """Stop the alarm and set the signal handlers and the mask of the main thread."""
        _signal.alarm(0)
        # Not signal.getsignal(): its conversion to an enum costs more than the rest of a turn.
        if list(map(_signal.getsignal, self._numbers)) != self._expected:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def restore_streams(self) -> bool:
        """Set sys.stdin, sys.stdout and sys.stderr; whether a handler had replaced one of them."""
        if (sys.stdin, sys.stdout, sys.stderr) == self._streams:
            return False
        sys.stdin, sys.stdout, sys.stderr = self._streams
        return True

    def restore(self) -> messages.DirtyExit | None:
        """Restore everything else. Returns why the child must end, if that is impossible. Flush the output before."""
        try:
            os.fchdir(self._directory)
            os.umask(self._umask)
            for saved, fd in self._saved:
                os.dup2(saved, fd)
        except OSError:
            return messages.DirtyExit.DESCRIPTORS
        # Compares the bytes behind os.environ: comparing the mapping itself would decode each variable.
        if os.environ is not self._environ or self._data != self._variables:
            self._restore_environment()
        if self._user is not None and (os.getresuid(), os.getresgid()) != self._user:
            return messages.DirtyExit.USER
        if "resource" in sys.modules and self._are_limits_changed(sys.modules["resource"]):
            return messages.DirtyExit.LIMITS
        if _thread._count() != self._count and self._has_left_threads():
            return messages.DirtyExit.THREADS
        return None

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003  # a handler may have replaced the object; the variables follow below
        variables = os.environb
        is_zone_changed = variables.get(b"TZ") != self._variables.get(b"TZ")
        for name in variables.keys() - self._variables.keys():
            del variables[name]
        for name, value in self._variables.items():
            if variables.get(name) != value:
                variables[name] = value
        if is_zone_changed:
            time.tzset()

    def _are_limits_changed(self, resource: ModuleType) -> bool:
        """If `resource` was not imported before the first task, compares with the fork server, which has the same
        limits as the child had at its start."""
        try:
            if self._limits is None:
                self._limits = _limits(resource, os.getppid())
            return _limits(resource, 0) != self._limits
        except OSError:
            return True

    def _has_left_threads(self) -> bool:
        """Whether threads run that a task started, apart from those of the event loop of coroutines."""
        from fileq.handlers.event_loop import own_threads  # not above: it imports asyncio

        deadline_s = time.monotonic() + THREAD_GRACE_S
        while True:
            own = sum(thread.is_alive() and thread not in self._threads for thread in own_threads())
            count = _thread._count()
            if count <= self._base_count + own:
                self._count = count
                return False
            if time.monotonic() > deadline_s:
                return True
            time.sleep(0.001)


def _duplicate(fd: int) -> int:
    with contextlib.suppress(OSError):
        return os.dup(fd)
    return -1  # it was closed before the first task


def _limits(resource: Any, pid: int) -> list[tuple[int, int]]:
    return [resource.prlimit(pid, getattr(resource, name)) for name in LIMITS]
