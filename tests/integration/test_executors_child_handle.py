"""One place and its stream, with the test at the child's end of it."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from fileq.core.outcome import Died, Done, Failed
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.child_handle import Garbage, Place
from fileq.worker.executors.process.messages import DOORBELL, HEADER, LONGEST_RAN, READY, decode_task, framed
from fileq.worker.executors.stop_request import Asked

TASK = Task("key", b"raw", 3, b"/data/\xff", (b"/data",), 2, 30.0)
BIG = Task("big", b"x" * (4 << 20), 0, b"", (), 1, 30.0)


class Stage:
    """A place whose child is this very process; `rings` counts the doorbell."""

    def __init__(self) -> None:
        self.place = Place()
        self.child = self.place.open(1)
        self.place.spawned(os.getpid(), os.pidfd_open(os.getpid()))
        self.rings = 0
        self.former = signal.signal(DOORBELL, self._ring)

    def _ring(self, _number: int, _frame: object) -> None:
        self.rings += 1

    def get_ready(self) -> None:
        self.child.sendall(READY)
        assert self.place.hear() is None
        assert self.place.is_ready

    def received(self, size: int) -> bytes:
        return self.child.recv(size, socket.MSG_WAITALL)

    def close(self) -> None:
        signal.signal(DOORBELL, self.former)
        self.child.close()
        self.place.vacate()
        self.place.vacate()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def test_a_task_is_sent_whole_with_its_number(stage: Stage) -> None:
    stage.get_ready()
    assert stage.place.start(7, TASK, 1.0)
    length, number = HEADER.unpack(stage.received(HEADER.size))
    assert number == 7
    assert decode_task(stage.received(length)) == TASK


@pytest.mark.parametrize("ran", [Done(b"1", "w"), Failed("no", "ValueError", after_s=1.5), Died("killed")])
def test_an_outcome_is_heard_however_it_is_cut(stage: Stage, ran: Ran) -> None:
    stage.get_ready()
    for number in (1, 2):
        stage.place.start(number, TASK, 1.0)
        message = framed(number, ran)
        for byte in message[:-1]:
            stage.child.sendall(bytes([byte]))
            assert stage.place.hear() is None
        stage.child.sendall(message[-1:])
        assert stage.place.hear() == ran


def test_a_large_outcome_is_heard_over_many_reads(stage: Stage) -> None:
    stage.get_ready()
    stage.place.start(1, TASK, 1.0)
    left, heard = bytes(framed(1, Done(b"x" * (1 << 20)))), None
    while heard is None:
        left = left[stage.child.send(left, socket.MSG_DONTWAIT) :] if left else left
        heard = stage.place.hear()
    assert heard == Done(b"x" * (1 << 20))


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(framed(2, Done()), id="of another task"),
        pytest.param(framed(1, Done()) + b"x", id="followed by something"),
        pytest.param(HEADER.pack(1, 1) + b"\xc1", id="that is not msgpack"),
        pytest.param(HEADER.pack(1, 1) + b"\x01", id="that is another thing"),
        pytest.param(HEADER.pack(LONGEST_RAN + 1, 1), id="longer than any"),
        pytest.param(READY, id="ready again"),
    ],
)
def test_an_outcome_that_is_not_ours_is_garbage(stage: Stage, message: bytes) -> None:
    stage.get_ready()
    stage.place.start(1, TASK, 1.0)
    stage.child.sendall(message)
    with pytest.raises(Garbage):
        stage.place.hear()


def test_an_outcome_before_ready_is_garbage(stage: Stage) -> None:
    stage.child.sendall(framed(0, Done()))
    with pytest.raises(Garbage):
        stage.place.hear()


def test_the_end_of_the_stream_is_no_outcome(stage: Stage) -> None:
    stage.child.close()
    with pytest.raises(EOFError):
        stage.place.hear()


def test_what_does_not_fit_into_the_stream_is_sent_later(stage: Stage) -> None:
    stage.get_ready()
    assert not stage.place.start(1, BIG, 1.0)
    assert not stage.place.flush()
    received = b""
    while not stage.place.flush():
        received += stage.child.recv(1 << 20)
    received += stage.received(len(framed(1, BIG)) - len(received))
    assert received == framed(1, BIG)


def test_a_cancellation_comes_after_its_task_and_the_bell_rings_when_it_is_there(stage: Stage) -> None:
    stage.get_ready()
    assert not stage.place.start(1, BIG, 100.0)
    assert not stage.place.ask(Asked.TO_STOP, 50.0)
    assert stage.place.ends_s == 50.0
    assert stage.rings == 1
    received = b""
    while not stage.place.flush():
        assert stage.rings == 1
        received += stage.child.recv(1 << 20)
    assert stage.rings == 2
    received += stage.received(len(framed(1, BIG)) + HEADER.size - len(received))
    assert received.endswith(HEADER.pack(0, 1))


def test_the_bell_rings_when_the_pid_comes_later_than_the_cancellation(stage: Stage) -> None:
    pidfd, stage.place.pidfd = stage.place.pidfd, -1
    stage.get_ready()
    stage.place.start(1, TASK, 1.0)
    stage.place.ask(Asked.TO_STOP, 1.0)
    assert stage.rings == 0
    stage.place.spawned(os.getpid(), pidfd)
    assert stage.rings == 1


def test_asking_never_gives_a_task_more_time(stage: Stage) -> None:
    stage.get_ready()
    stage.place.start(1, TASK, 10.0)
    stage.place.ask(Asked.TO_STOP, 50.0)
    assert stage.place.ends_s == 10.0


def test_talking_to_a_child_that_is_gone_is_no_error(stage: Stage) -> None:
    stage.get_ready()
    assert not stage.place.start(1, BIG, 1.0)
    stage.child.close()
    assert stage.place.flush()
    assert stage.place.ask(Asked.TO_QUIT, 1.0)


def test_a_task_for_a_child_that_is_gone_is_refused(stage: Stage) -> None:
    stage.get_ready()
    stage.child.close()
    with pytest.raises(BrokenPipeError):
        stage.place.start(1, TASK, 1.0)


@pytest.mark.parametrize("is_read", [False, True])
def test_whether_a_child_that_is_gone_had_read_its_task_is_known(stage: Stage, is_read: bool) -> None:
    stage.get_ready()
    stage.place.start(1, TASK, 1.0)
    if is_read:
        stage.received(len(framed(1, TASK)))
    stage.child.close()
    with pytest.raises(EOFError):
        stage.place.hear()
    assert stage.place.was_task_read is is_read
