"""Keeps a child behind every handle: requests children, learns which have ended, restarts the fork server.

A fork server that is frozen is replaced like one that has ended: see ServerWatch.

Knows children and their streams, not tasks. Owns the epoll that watches the streams and the fork server. A child or a
fork server that fails right after its start is started again after a pause that grows with each failure.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fileq.core import events
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration
from fileq.files.descriptor_limit import restore_limit_of
from fileq.worker.executors.process import messages
from fileq.worker.executors.process.child_handle import NEVER_S, ChildHandle
from fileq.worker.executors.process.output_pipe import ChildOutput, OutputReader

MAX_PENDING_REQUESTS = 32  # children that are requested at a time; more requests would only fill the socket
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0
CLOSE_TIMEOUT_S = 5.0


class ChildPool:
    """After construction the handlers are imported and the children requested. Raises ConfigError if the handlers
    can't be imported."""

    def __init__(
        self,
        handles: Sequence[ChildHandle],
        program: messages.Program,
        emit: events.Emit,
        *,
        captures_output: bool = False,
    ) -> None:
        self._handles = handles
        self._program = program
        self._emit = emit
        self._by_child: dict[int, ChildHandle] = {}
        self._pending: set[int] = set()  # children that were requested and not reported yet
        self._without_child = deque(handles)
        self._last_child = 0
        self._restart_at_s = NEVER_S
        self._failed_starts = 0
        self._old_servers: list[ForkServerClient] = []  # ended, but their guards may still kill what they left
        self._is_stopped = self._is_closed = False
        self.by_fd: dict[int, ChildHandle] = {}
        self.epoll = select.epoll()
        self._outputs: OutputReader | None = None
        self._server = ForkServerClient(program)
        try:
            self._server.load()
            self._watch = ServerWatch(time.monotonic())
            self._watch.answered()
            self._outputs = OutputReader(emit) if captures_output else None
        except BaseException:
            self.close()
            raise
        self.epoll.register(self._server.fileno(), select.EPOLLIN)
        self._request_children(time.monotonic())

    @property
    def server_fd(self) -> int:
        """The descriptor of the fork server; when it is readable, call receive(). -1 while there is no server."""
        return self._server.fileno()

    def receive(self) -> Iterator[tuple[ChildHandle, str]]:
        """The handles whose child has ended, each with the cause.

        Their streams are still open, for an outcome that was sent before; then call replace()."""
        for message, fd in self._server.receive():
            self._watch.answered()
            yield from self._apply(message, fd)
        if self._server.is_gone:
            cause = f"the fork server {self._server.cause}"
            self._drop_server()
            yield from [(handle, cause) for handle in self._handles if handle.child]
        self._request_children(time.monotonic())

    def watch_server(self, now_s: float) -> float:
        """Ping the fork server if it owes a report and that is due; returns when to call this again.

        A server that has not answered for too long is given up, and the result is 0: call receive() then."""
        if self._server.is_gone or not self._awaits_report():
            return NEVER_S
        if self._watch.turn(now_s):
            self._server.ping()
        timeout_s = ANSWER_TIMEOUT_S if self._server.is_loaded else LOAD_TIMEOUT_S
        if not self._watch.is_frozen(timeout_s):
            return self._watch.due_s
        self._server.give_up(f"did not answer for {format_duration(timeout_s)}")
        return 0.0

    def replace(self, handle: ChildHandle) -> None:
        """Kills the child of this handle, if it lives, and requests another; after a pause if it never got a task."""
        handle.kill()
        pause_s = 0.0
        if not handle.was_used:
            # No pause after the first failure, which may have been chance.
            handle.failed_starts += 1
            pause_s = pause_after(handle.failed_starts - 1)
        self._by_child.pop(handle.child, None)
        self.unwatch(handle)
        handle.discard_child()
        handle.spawn_at_s = time.monotonic() + pause_s
        self._without_child.append(handle)
        self._request_children(handle.spawn_at_s - pause_s)

    def do_due_work(self, now_s: float) -> float:
        """Restart the server and request children where that is due; returns when to call this again."""
        if self._is_stopped:
            self._restart_at_s = NEVER_S
        elif self._restart_at_s <= now_s:
            self._restart()
        self._old_servers = [server for server in self._old_servers if not server.has_ended()]
        self._request_children(now_s)
        soon_s = now_s + FIRST_PAUSE_S
        is_waiting = self._server.is_loaded and self._without_child and not self._is_stopped
        spawn_at_s = min(handle.spawn_at_s for handle in self._without_child) if is_waiting else NEVER_S
        return min(self._restart_at_s, max(spawn_at_s, soon_s), soon_s if self._old_servers else NEVER_S)

    def watch(self, handle: ChildHandle, is_writing: bool = False) -> None:
        """Watch its stream for data, and for room to write if `is_writing`. Does nothing after unwatch()."""
        if handle.fd in self.by_fd:
            self.epoll.modify(handle.fd, select.EPOLLIN | (select.EPOLLOUT if is_writing else 0))

    def unwatch(self, handle: ChildHandle) -> None:
        """Stop watching its stream. May be called twice."""
        if self.by_fd.pop(handle.fd, None) is not None:
            self.epoll.unregister(handle.fd)

    def stop(self) -> None:
        """Start no more children."""
        self._is_stopped = True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_stopped = True
        self._server.hang_up()
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for server in (*self._old_servers, self._server):
            if not server.has_ended(max(0.0, deadline_s - time.monotonic())):
                # A process sleeps in the kernel or belongs to another user. The guard stays until it has ended.
                self._emit(events.ProcessAbandoned())
        for handle in self._handles:
            handle.discard_child()
        if self._outputs is not None:
            self._outputs.close()
        self.epoll.close()

    def _request_children(self, now_s: float) -> None:
        """Request a child for every handle that has none and whose pause is over."""
        if self._is_stopped or not self._server.is_loaded:
            return
        for _ in range(len(self._without_child)):
            handle = self._without_child.popleft()
            if (
                handle.spawn_at_s > now_s
                or len(self._pending) >= MAX_PENDING_REQUESTS
                or not self._request_child(handle)
            ):
                self._without_child.append(handle)

    def _request_child(self, handle: ChildHandle) -> bool:
        self._last_child = self._last_child % (messages.NUMBER_LIMIT - 1) + 1
        child_end, tokens = handle.open_stream(self._last_child)
        with child_end:
            handle.output = output = self._outputs.open() if self._outputs is not None else None
            is_requested = self._server.spawn(handle.child, child_end.fileno(), tokens.child_end, output)
        tokens.close_child_end()
        if output is not None:
            output.close_child_end()
        if not is_requested:
            handle.discard_child()
            return False
        self._pending.add(handle.child)
        self._by_child[handle.child] = self.by_fd[handle.fd] = handle
        self.epoll.register(handle.fd, select.EPOLLIN)
        return True

    def _apply(self, message: messages.FromServer, fd: int | None) -> Iterator[tuple[ChildHandle, str]]:
        match message:
            case messages.HandlersLoaded():
                if message.problems:
                    self._emit(events.ForkServerFailed(list(message.problems)))
                else:
                    self._failed_starts = 0
                    self._emit(events.ForkServerStarted())
            case messages.Spawned() if fd is not None:
                self._pending.discard(message.child)
                if handle := self._by_child.get(message.child):
                    handle.set_process(message.pid, fd)
                else:
                    with contextlib.suppress(ProcessLookupError):  # it has ended already
                        signal.pidfd_send_signal(fd, signal.SIGKILL)  # replaced before it was reported
                    os.close(fd)
            case messages.NotSpawned():
                self._pending.discard(message.child)
                self._emit(events.ChildStartFailed(message.error))
                if handle := self._by_child.get(message.child):
                    yield handle, message.error
            case messages.Exited():
                if (reason := messages.DIRTY_EXITS.get(message.code)) is not None:
                    self._emit(events.ChildReplaced(reason))
                if handle := self._by_child.get(message.child):
                    if not handle.is_ready:
                        self._emit(events.ChildStartFailed(_cause(message.code)))
                    yield handle, _cause(message.code)

    def _awaits_report(self) -> bool:
        """Whether a child is requested, or the stream of one has ended, or the handlers are not loaded."""
        return (
            bool(self._pending)
            or not self._server.is_loaded
            or any(handle.child and handle.fd not in self.by_fd for handle in self._handles)
        )

    def _drop_server(self) -> None:
        """The fork server has ended, and all its children with it. Their streams may still hold outcomes."""
        self._pending.clear()
        self._emit(events.ForkServerDied(self._server.cause))
        self.epoll.unregister(self._server.fileno())
        self._server.hang_up()
        self._old_servers.append(self._server)
        self._plan_restart()

    def _restart(self) -> None:
        self._restart_at_s = NEVER_S
        try:
            self._server = ForkServerClient(self._program)
        except OSError as error:
            self._emit(events.ForkServerFailed([str(error)]))
            self._plan_restart()
        else:
            self._watch = ServerWatch(time.monotonic())
            self.epoll.register(self._server.fileno(), select.EPOLLIN)

    def _plan_restart(self) -> None:
        self._failed_starts += 1
        self._restart_at_s = time.monotonic() + pause_after(self._failed_starts - 1)


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures in a row; 0 for none."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16)) if failures > 0 else 0.0


def _cause(code: int) -> str:
    return "closed its connection to the worker" if code == messages.EXIT_STREAM_LOST else messages.cause_of_death(code)


# The worker's side of the fork server: starts it, requests children, receives reports about them.
#
# Never blocks, except in load() and in has_ended() with a timeout. When the worker is killed with kill -9, the kernel
# closes its end of the control socket, and the guard kills every process below it.


LOAD_TIMEOUT_S = 120.0


class ForkServerClient:
    """One guard process with the fork server below it. Once `is_gone`, it is of no use: make another one."""

    def __init__(self, program: messages.Program) -> None:
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        server_end.setblocking(True)
        self.is_loaded = False
        self.is_gone = False
        self.cause = ""  # why it has ended
        program_fd = os.memfd_create("fileq-program")
        try:
            os.write(program_fd, msgspec.msgpack.encode(program))
            environment = {name: value for name, value in os.environ.items() if name not in program.hidden_variables}
            self._guard = start_guard(server_end.fileno(), program_fd, environment)
        except BaseException:
            self._control.close()
            raise
        finally:
            server_end.close()
            os.close(program_fd)

    def fileno(self) -> int:
        return self._control.fileno()

    def load(self) -> None:
        """Wait until the handlers are imported. If they can't be, raises ConfigError with one line for each problem."""
        deadline_s = time.monotonic() + LOAD_TIMEOUT_S
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not self.is_gone:
            if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                raise ConfigError(f"importing the handlers took more than {format_duration(LOAD_TIMEOUT_S)}")
            for message, _ in self.receive():
                if isinstance(message, messages.HandlersLoaded) and message.problems:
                    raise ConfigError(message.problems)
            if self.is_loaded:
                return
        raise ConfigError(f"the handlers can't be loaded: the process that imports them {self.cause}")

    def spawn(self, child: int, stream: int, tokens: int, output: ChildOutput | None = None) -> bool:
        """Request a child that gets these ends of its stream and its tokens, and the other end of this output pipe;
        False if the request can't be sent now."""
        fds, secret = [stream, tokens], b""
        if output is not None:
            fds, secret = [*fds, output.child_end], output.secret
        try:
            socket.send_fds(self._control, [messages.encode(messages.Spawn(child, secret))], fds, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def ping(self) -> None:
        """Ask for a Pong. A message that can't be sent is not answered either, which is what the caller looks for."""
        with contextlib.suppress(OSError):
            self._control.send(messages.encode(messages.Ping()), socket.MSG_NOSIGNAL)

    def give_up(self, cause: str) -> None:
        """It does not answer any more: it is gone for the worker, and hang_up() ends it."""
        self.is_gone, self.is_loaded = True, False
        self.cause = cause
        # The guard kills the server, frozen or not. It may be stopped itself.
        self._guard.send_signal(signal.SIGCONT)

    def receive(self) -> Iterator[tuple[messages.FromServer, int | None]]:
        """The messages that have arrived, each with its descriptor, which the caller must close."""
        while not self.is_gone:
            try:
                packet, fds, _, _ = socket.recv_fds(
                    self._control, messages.MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionError:
                packet, fds = b"", []
            if not packet:
                self.is_gone, self.is_loaded = True, False
                self.cause = self.cause or "died"
                return
            message = messages.decode_from_server.decode(packet)
            if isinstance(message, messages.HandlersLoaded):
                self.is_loaded = not message.problems
            elif isinstance(message, messages.ForkServerEnded):
                self.cause = (
                    f"was {cause}" if (cause := messages.cause_of_death(message.code)).startswith("killed") else cause
                )
            yield message, fds[0] if fds else None

    def hang_up(self) -> None:
        """Close the connection: the guard then kills everything below it. Does not wait. May be called twice."""
        self.is_gone, self.is_loaded = True, False
        # close() alone is not enough: a process that a handler forked from the worker may hold a copy of the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether all of its processes have ended. The guard ends last."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_guard(control_fd: int, program_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the guard in a fresh interpreter and a session of its own, with these descriptors and variables."""
    fds = (control_fd, program_fd)
    guard = subprocess.Popen(
        messages.python_command("fileq.worker.executors.process.fork_server", *fds, os.getpid()),
        stdin=subprocess.DEVNULL,
        stdout=_stderr(),
        stderr=_stderr(),
        pass_fds=fds,
        env=environment,
        start_new_session=True,
    )
    restore_limit_of(guard.pid)  # before it has started Python and forked
    return guard


def _stderr() -> int:
    """Where handlers print: to the worker's stderr, as the logs do, or to nowhere if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


# Decides when the fork server must be asked whether it still works, and when it counts as frozen.
#
# A server can be alive and do nothing: a signal or a debugger stopped it, or a call of the kernel does not return.
# Then no child is started and no end of a child is reported. Only time in which the worker itself ran counts: a
# server is not replaced because the worker was stopped as well.


PING_EVERY_S = 1.0  # while a report is missing
ANSWER_TIMEOUT_S = 10.0
CHECK_EVERY_S = 1.0  # while an answer is missing


class ServerWatch:
    """For one fork server, whose first answer is that it has started. Times are by time.monotonic()."""

    def __init__(self, now_s: float) -> None:
        self._is_waiting = True
        self._waited_s = 0.0
        self._checked_s = self._pinged_s = now_s
        self.due_s = now_s + CHECK_EVERY_S  # when the next call of turn() is due

    def answered(self) -> None:
        """The server sent a message. Any message will do."""
        self._is_waiting = False
        self._waited_s = 0.0
        self.due_s = self._pinged_s + PING_EVERY_S

    def turn(self, now_s: float) -> bool:
        """Whether a ping must be sent now."""
        if self._is_waiting:
            self._waited_s += min(now_s - self._checked_s, CHECK_EVERY_S)
        self._checked_s = now_s
        if now_s < self.due_s:
            return False
        self.due_s = now_s + CHECK_EVERY_S
        if self._is_waiting:
            return False
        self._is_waiting = True
        self._pinged_s = now_s
        return True

    def is_frozen(self, timeout_s: float) -> bool:
        """Whether it has owed an answer for this long."""
        return self._waited_s >= timeout_s
