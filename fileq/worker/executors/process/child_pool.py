"""Keeps a child behind every handle: requests children, learns which have ended, restarts the fork server.

A fork server that is frozen is replaced like one that has ended: see server_watch.py.

Knows children and their streams, not tasks. Owns the epoll that watches the streams and the fork server. A child or a
fork server that fails right after its start is started again after a pause that grows with each failure.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence

from fileq.core.events import (
    ChildReplaced,
    ChildStartFailed,
    Emit,
    ForkServerDied,
    ForkServerFailed,
    ForkServerStarted,
    ProcessAbandoned,
)
from fileq.core.units import format_duration
from fileq.worker.executors.process.child_handle import NEVER_S, ChildHandle
from fileq.worker.executors.process.child_output import OutputReader
from fileq.worker.executors.process.fork_server_client import LOAD_TIMEOUT_S, ForkServerClient
from fileq.worker.executors.process.messages import (
    DIRTY_EXITS,
    EXIT_STREAM_LOST,
    NUMBER_LIMIT,
    DirtyExit,
    Exited,
    FromServer,
    HandlersLoaded,
    NotSpawned,
    Spawned,
    cause_of_death,
)
from fileq.worker.executors.process.program import Program
from fileq.worker.executors.process.server_watch import ANSWER_TIMEOUT_S, ServerWatch

MAX_PENDING_REQUESTS = 32  # children that are requested at a time; more requests would only fill the socket
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0
CLOSE_TIMEOUT_S = 5.0


class ChildPool:
    """After construction the handlers are imported and the children requested. Raises ConfigError if the handlers
    can't be imported."""

    def __init__(
        self, handles: Sequence[ChildHandle], program: Program, emit: Emit, *, captures_output: bool = False
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
                self._emit(ProcessAbandoned())
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
        self._last_child = self._last_child % (NUMBER_LIMIT - 1) + 1
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

    def _apply(self, message: FromServer, fd: int | None) -> Iterator[tuple[ChildHandle, str]]:
        match message:
            case HandlersLoaded():
                if message.problems:
                    self._emit(ForkServerFailed(list(message.problems)))
                else:
                    self._failed_starts = 0
                    self._emit(ForkServerStarted())
            case Spawned() if fd is not None:
                self._pending.discard(message.child)
                if handle := self._by_child.get(message.child):
                    handle.set_process(message.pid, fd)
                else:
                    with contextlib.suppress(ProcessLookupError):  # it has ended already
                        signal.pidfd_send_signal(fd, signal.SIGKILL)  # replaced before it was reported
                    os.close(fd)
            case NotSpawned():
                self._pending.discard(message.child)
                self._emit(ChildStartFailed(message.error))
                if handle := self._by_child.get(message.child):
                    yield handle, message.error
            case Exited():
                if message.code in DIRTY_EXITS:
                    self._emit(ChildReplaced(DirtyExit(message.code).reason))
                if handle := self._by_child.get(message.child):
                    if not handle.is_ready:
                        self._emit(ChildStartFailed(_cause(message.code)))
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
        self._emit(ForkServerDied(self._server.cause))
        self.epoll.unregister(self._server.fileno())
        self._server.hang_up()
        self._old_servers.append(self._server)
        self._plan_restart()

    def _restart(self) -> None:
        self._restart_at_s = NEVER_S
        try:
            self._server = ForkServerClient(self._program)
        except OSError as error:
            self._emit(ForkServerFailed([str(error)]))
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
    return "closed its connection to the worker" if code == EXIT_STREAM_LOST else cause_of_death(code)
