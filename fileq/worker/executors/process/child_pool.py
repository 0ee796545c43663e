"""Keeps every place supplied with a child: asks the fork server, hears who ended, starts another server if need be.

Knows children and streams, not tasks. One epoll watches the streams of all children and the fork server.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence

from fileq.core.events import Emit
from fileq.worker.executors.process.child_handle import NEVER_S, Place
from fileq.worker.executors.process.fork_server_client import ForkServer
from fileq.worker.executors.process.messages import (
    EXIT_CUT_OFF,
    NUMBERS,
    Exited,
    FromServer,
    Loaded,
    NotSpawned,
    Spawned,
    cause_of_death,
)
from fileq.worker.executors.process.program import Program

ASKED_AT_ONCE = 32  # children; more requests would only fill the socket
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
CLOSE_PATIENCE_S = 5.0


class Children:
    """Made, the handlers are imported and the children are on their way. ConfigError if they can't be imported."""

    def __init__(self, places: Sequence[Place], program: Program, emit: Emit) -> None:
        self._places = places
        self._program = program
        self._emit = emit
        self._by_child: dict[int, Place] = {}
        self._awaited: set[int] = set()  # children that were asked for and are not there yet
        self._vacant = deque(places)
        self._last_child = 0
        self._restarts_s = NEVER_S
        self._failed_starts = 0
        self._former: list[ForkServer] = []  # gone, but their guards may still be cleaning up
        self._is_stopped = self._is_closed = False
        self.by_fd: dict[int, Place] = {}
        self.epoll = select.epoll()
        self._server = ForkServer(program)
        try:
            self._server.load()
        except BaseException:
            self.close()
            raise
        self.epoll.register(self._server.fileno(), select.EPOLLIN)
        self._fill(time.monotonic())

    @property
    def server_fd(self) -> int:
        """What to watch for hear(); -1 while there is no fork server."""
        return self._server.fileno()

    def hear(self) -> Iterator[tuple[Place, str]]:
        """The places whose child has ended, and how. Their streams are still there, for last words; then replace()."""
        for message, fd in self._server.receive():
            yield from self._heed(message, fd)
        if self._server.is_gone:
            cause = f"the fork server {self._server.cause}"
            self._lose_server()
            yield from [(place, cause) for place in self._places if place.child]
        self._fill(time.monotonic())

    def replace(self, place: Place) -> None:
        """The child of this place is dead or dies now; another one comes, later if this one never did anything."""
        place.kill()
        pause_s = 0.0
        if not place.has_worked:
            place.failures += 1
            pause_s = pause_after(place.failures - 1)
        self._by_child.pop(place.child, None)
        self.deafen(place)
        place.vacate()
        place.starts_s = time.monotonic() + pause_s
        self._vacant.append(place)
        self._fill(place.starts_s - pause_s)

    def look(self, now_s: float) -> float:
        """Do what is due; returns when to look again."""
        if self._is_stopped:
            self._restarts_s = NEVER_S
        elif self._restarts_s <= now_s:
            self._restart()
        self._former = [server for server in self._former if not server.has_ended()]
        self._fill(now_s)
        is_waiting = self._server.is_loaded and self._vacant and not self._is_stopped
        starts_s = min(place.starts_s for place in self._vacant) if is_waiting else NEVER_S
        return min(
            self._restarts_s, max(starts_s, now_s + FIRST_PAUSE_S), now_s + FIRST_PAUSE_S if self._former else NEVER_S
        )

    def listen(self, place: Place, is_writing: bool = False) -> None:
        """Watch its stream, also for room to write if asked to; not if it has been deafened."""
        if place.fd in self.by_fd:
            self.epoll.modify(place.fd, select.EPOLLIN | (select.EPOLLOUT if is_writing else 0))

    def deafen(self, place: Place) -> None:
        """Watch its stream no longer. May be called twice."""
        if self.by_fd.pop(place.fd, None) is not None:
            self.epoll.unregister(place.fd)

    def stop(self) -> None:
        """No more children."""
        self._is_stopped = True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_stopped = True
        self._server.hang_up()
        deadline_s = time.monotonic() + CLOSE_PATIENCE_S
        for server in (*self._former, self._server):
            if not server.has_ended(max(0.0, deadline_s - time.monotonic())):
                # Asleep in the kernel, or another user's: the guard stays with it until it has ended.
                self._emit("forkserver.left_behind", level="warning")
        for place in self._places:
            place.vacate()
        self.epoll.close()

    def _fill(self, now_s: float) -> None:
        """Ask for children where there are none and one is due."""
        if self._is_stopped or not self._server.is_loaded:
            return
        for _ in range(len(self._vacant)):
            place = self._vacant.popleft()
            if place.starts_s > now_s or len(self._awaited) >= ASKED_AT_ONCE or not self._request(place):
                self._vacant.append(place)

    def _request(self, place: Place) -> bool:
        self._last_child = self._last_child % (NUMBERS - 1) + 1
        with place.open(self._last_child) as theirs:
            if not self._server.spawn(place.child, theirs.fileno()):
                place.vacate()
                return False
        self._awaited.add(place.child)
        self._by_child[place.child] = self.by_fd[place.fd] = place
        self.epoll.register(place.fd, select.EPOLLIN)
        return True

    def _heed(self, message: FromServer, fd: int | None) -> Iterator[tuple[Place, str]]:
        match message:
            case Loaded():
                if message.problems:
                    self._emit("forkserver.failed", level="error", problems=list(message.problems))
                else:
                    self._failed_starts = 0
                    self._emit("forkserver.started")
            case Spawned() if fd is not None:
                self._awaited.discard(message.child)
                if place := self._by_child.get(message.child):
                    place.spawned(message.pid, fd)
                else:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)  # given up before it was there
                    os.close(fd)
            case NotSpawned():
                self._awaited.discard(message.child)
                self._emit("child.not_started", level="error", error=message.error)
                if place := self._by_child.get(message.child):
                    yield place, message.error
            case Exited():
                if place := self._by_child.get(message.child):
                    if not place.is_ready:
                        self._emit("child.not_started", level="error", error=_cause(message.code))
                    yield place, _cause(message.code)

    def _lose_server(self) -> None:
        """All its children are gone with it; their streams may still hold what they said."""
        self._awaited.clear()
        self._emit("forkserver.died", level="error", cause=self._server.cause)
        self.epoll.unregister(self._server.fileno())
        self._server.hang_up()
        self._former.append(self._server)
        self._plan_restart()

    def _restart(self) -> None:
        self._restarts_s = NEVER_S
        try:
            self._server = ForkServer(self._program)
        except OSError as error:
            self._emit("forkserver.failed", level="error", problems=[str(error)])
            self._plan_restart()
        else:
            self.epoll.register(self._server.fileno(), select.EPOLLIN)

    def _plan_restart(self) -> None:
        self._failed_starts += 1
        self._restarts_s = time.monotonic() + pause_after(self._failed_starts - 1)


def pause_after(failures: int) -> float:
    """None after the first: that may have been chance."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16)) if failures > 0 else 0.0


def _cause(code: int) -> str:
    return "closed its connection to the worker" if code == EXIT_CUT_OFF else cause_of_death(code)
