"""How the pool requests and replaces children, with a fork server that only records the requests."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from fileq.core.events import ChildStartFailed, Event, ForkServerDied
from fileq.worker.executors.process import child_pool
from fileq.worker.executors.process.child_handle import ChildHandle
from fileq.worker.executors.process.child_pool import ChildPool
from fileq.worker.executors.process.messages import Exited, FromServer, NotSpawned, Pong, Program, Spawned


class RecordingServer:
    """Records requests for children, and reports what the test puts into `messages`."""

    made: ClassVar[list[RecordingServer]] = []

    def __init__(self, _program: Program) -> None:
        self.made.append(self)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_loaded = False
        self.is_gone = False
        self.cause = "died"
        self.is_full = False
        self.requested: list[int] = []
        self.messages: list[FromServer] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def load(self) -> None:
        self.is_loaded = True

    def ping(self) -> None:
        self.messages.append(Pong())

    def spawn(self, child: int, _stream: int, _tokens: int, _output: object = None) -> bool:
        if not self.is_full:
            self.requested.append(child)
        return not self.is_full

    def receive(self) -> Iterator[tuple[FromServer, int | None]]:
        while self.messages:
            message = self.messages.pop(0)
            yield message, os.pidfd_open(os.getpid()) if isinstance(message, Spawned) else None

    def hang_up(self) -> None:
        self._socket.close()

    def has_ended(self, _timeout_s: float = 0.0) -> bool:
        return True


class Setup:
    """A pool with one handle."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.handle = ChildHandle()
        self.pool = ChildPool([self.handle], Program("none"), self.events.append)

    @property
    def server(self) -> RecordingServer:
        """The one that was started last."""
        return RecordingServer.made[-1]

    def receive(self, *messages: FromServer) -> None:
        self.server.messages += messages
        for handle, _ in self.pool.receive():
            handle.pidfd, pidfd = -1, handle.pidfd  # of this process, which must not be killed
            if pidfd >= 0:
                os.close(pidfd)
            self.pool.replace(handle)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.setattr(child_pool, "ForkServerClient", RecordingServer)
    monkeypatch.setattr(RecordingServer, "made", [])
    setup = Setup()
    yield setup
    setup.pool.close()
    setup.pool.close()


def test_a_child_is_requested_for_every_handle(setup: Setup) -> None:
    assert setup.server.requested == [1]
    assert setup.pool.do_due_work(time.monotonic()) == float("inf")


def test_a_request_that_does_not_fit_into_the_socket_is_made_again(setup: Setup) -> None:
    setup.server.is_full = True
    setup.receive(NotSpawned(1, "OSError: no"))
    now_s = time.monotonic()
    assert now_s < setup.pool.do_due_work(now_s) < now_s + 1
    assert setup.server.requested == [1]
    setup.server.is_full = False
    setup.pool.do_due_work(time.monotonic())
    assert len(setup.server.requested) == 2


def test_a_child_that_cannot_be_started_is_requested_again_after_ever_longer_pauses(setup: Setup) -> None:
    pauses_s = []
    for _ in range(12):
        now_s = time.monotonic()
        setup.receive(NotSpawned(setup.server.requested[-1], "OSError: Cannot allocate memory"))
        pauses_s.append(setup.handle.spawn_at_s - now_s)
        setup.pool.do_due_work(setup.handle.spawn_at_s)
    assert [round(pause_s, 1) for pause_s in pauses_s] == [0.0, 0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    assert setup.server.requested == list(range(1, 14))
    assert setup.events == [ChildStartFailed("OSError: Cannot allocate memory")] * 12


def test_a_child_that_ran_a_task_is_replaced_without_a_pause(setup: Setup) -> None:
    for _ in range(5):
        child = setup.server.requested[-1]
        setup.receive(Spawned(child, os.getpid()))
        setup.handle.is_ready, setup.handle.last_number = True, 1
        setup.receive(Exited(child, -9))
    assert setup.server.requested == [1, 2, 3, 4, 5, 6]
    assert setup.events == []


def test_a_report_of_a_child_that_was_replaced_changes_nothing(setup: Setup) -> None:
    setup.receive(Exited(99, -9), NotSpawned(98, "OSError: no"))
    assert setup.server.requested == [1]
    assert setup.handle.child == 1


def test_after_stop_no_child_is_requested(setup: Setup) -> None:
    setup.pool.stop()
    setup.receive(NotSpawned(1, "OSError: no"))
    assert setup.pool.do_due_work(time.monotonic() + 10) == float("inf")
    assert setup.server.requested == [1]


def test_a_fork_server_that_has_ended_is_replaced_unless_the_pool_is_stopped(setup: Setup) -> None:
    first = setup.server
    first.is_gone, first.is_loaded = True, False
    setup.receive()
    setup.pool.do_due_work(time.monotonic())
    second = setup.server
    assert second is not first
    assert setup.events == [ForkServerDied("died")]
    setup.pool.stop()
    second.is_gone = True
    setup.receive()
    assert setup.pool.do_due_work(time.monotonic() + 10) == float("inf")
    assert setup.server is second
