"""How children are asked for, with a fork server that has none to give."""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.worker.executors.process import child_pool as children
from fileq.worker.executors.process.child_handle import Place
from fileq.worker.executors.process.child_pool import Children
from fileq.worker.executors.process.messages import Exited, FromServer, NotSpawned, Spawned
from fileq.worker.executors.process.program import Program


class EmptyServer:
    """Notes what it is asked for, and says what the test puts into `messages`."""

    def __init__(self, _program: Program) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_loaded = False
        self.is_gone = False
        self.cause = "died"
        self.is_full = False
        self.asked: list[int] = []
        self.messages: list[FromServer] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def load(self) -> None:
        self.is_loaded = True

    def spawn(self, child: int, _stream: int) -> bool:
        if not self.is_full:
            self.asked.append(child)
        return not self.is_full

    def receive(self) -> Iterator[tuple[FromServer, int | None]]:
        while self.messages:
            message = self.messages.pop(0)
            yield message, os.pidfd_open(os.getpid()) if isinstance(message, Spawned) else None

    def hang_up(self) -> None:
        self._socket.close()

    def has_ended(self, _patience_s: float = 0.0) -> bool:
        return True


class Stage:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.place = Place()
        self.children = Children([self.place], Program("none"), self._emit)

    def _emit(self, event: str, *, level: str = "info", **fields: Any) -> None:
        self.events.append((event, fields))

    @property
    def server(self) -> EmptyServer:
        server: Any = self.children._server
        assert isinstance(server, EmptyServer)
        return server

    def hear(self, *messages: FromServer) -> None:
        self.server.messages += messages
        for place, _ in self.children.hear():
            place.pidfd, pidfd = -1, place.pidfd  # this process, which is not to be killed
            if pidfd >= 0:
                os.close(pidfd)
            self.children.replace(place)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(children, "ForkServer", EmptyServer)
    stage = Stage()
    yield stage
    stage.children.close()
    stage.children.close()


def test_every_place_is_asked_a_child_for(stage: Stage) -> None:
    assert stage.server.asked == [1]
    assert stage.children.look(time.monotonic()) == float("inf")


def test_a_request_that_finds_no_room_is_made_again(stage: Stage) -> None:
    stage.server.is_full = True
    stage.hear(NotSpawned(1, "OSError: no"))
    now_s = time.monotonic()
    assert now_s < stage.children.look(now_s) < now_s + 1
    assert stage.server.asked == [1]
    stage.server.is_full = False
    stage.children.look(time.monotonic())
    assert len(stage.server.asked) == 2


def test_a_child_that_cannot_be_started_is_asked_for_again_and_again_but_ever_later(stage: Stage) -> None:
    pauses_s = []
    for _ in range(12):
        now_s = time.monotonic()
        stage.hear(NotSpawned(stage.server.asked[-1], "OSError: Cannot allocate memory"))
        pauses_s.append(stage.place.starts_s - now_s)
        stage.children.look(stage.place.starts_s)
    assert [round(pause_s, 1) for pause_s in pauses_s] == [0.0, 0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    assert stage.server.asked == list(range(1, 14))
    assert stage.events == [("child.not_started", {"error": "OSError: Cannot allocate memory"})] * 12


def test_a_child_that_has_worked_is_replaced_without_a_pause(stage: Stage) -> None:
    for _ in range(5):
        child = stage.server.asked[-1]
        stage.hear(Spawned(child, os.getpid()))
        stage.place.is_ready, stage.place.number = True, 1
        stage.hear(Exited(child, -9))
    assert stage.server.asked == [1, 2, 3, 4, 5, 6]
    assert stage.events == []


def test_news_of_a_child_that_is_no_longer_wanted_changes_nothing(stage: Stage) -> None:
    stage.hear(Exited(99, -9), NotSpawned(98, "OSError: no"))
    assert stage.server.asked == [1]
    assert stage.place.child == 1


def test_after_stop_nobody_is_asked_for(stage: Stage) -> None:
    stage.children.stop()
    stage.hear(NotSpawned(1, "OSError: no"))
    assert stage.children.look(time.monotonic() + 10) == float("inf")
    assert stage.server.asked == [1]


def test_a_fork_server_that_is_gone_is_replaced_unless_all_is_stopping(stage: Stage) -> None:
    first = stage.server
    first.is_gone, first.is_loaded = True, False
    stage.hear()
    stage.children.look(time.monotonic())
    second = stage.server
    assert second is not first
    assert stage.events == [("forkserver.died", {"cause": "died"})]
    stage.children.stop()
    second.is_gone = True
    stage.hear()
    assert stage.children.look(time.monotonic() + 10) == float("inf")
    assert stage.server is second
