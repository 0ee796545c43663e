"""The handle on one child, with the test at the child's end of the stream."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from fileq.core.claim import ClaimKey
from fileq.core.outcome import Died, Done, Failed
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.child_handle import ChildHandle, InvalidMessage
from fileq.worker.executors.process.messages import HEADER, MAX_OUTCOME_BYTES, READY, WAKE_SIGNAL, decode_task, framed
from fileq.worker.executors.stop_request import StopRequest

TASK = Task(ClaimKey("key", 1), b"raw", 3, b"/data/\xff", (b"/data",), 2, 30.0)
BIG = Task(ClaimKey("big", 1), b"x" * (4 << 20), 0, b"", (), 1, 30.0)


class Setup:
    """A handle whose child is this process itself; `wakes` counts its signals."""

    def __init__(self) -> None:
        self.handle = ChildHandle()
        self.child = self.handle.open_stream(1)
        self.handle.set_process(os.getpid(), os.pidfd_open(os.getpid()))
        self.wakes = 0
        self.former = signal.signal(WAKE_SIGNAL, self._on_wake)

    def _on_wake(self, _number: int, _frame: object) -> None:
        self.wakes += 1

    def get_ready(self) -> None:
        self.child.sendall(READY)
        assert self.handle.receive() is None
        assert self.handle.is_ready

    def received(self, size: int) -> bytes:
        return self.child.recv(size, socket.MSG_WAITALL)

    def close(self) -> None:
        signal.signal(WAKE_SIGNAL, self.former)
        self.child.close()
        self.handle.discard_child()
        self.handle.discard_child()


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.close()


def test_a_task_is_sent_whole_with_its_number(setup: Setup) -> None:
    setup.get_ready()
    assert setup.handle.send_task(7, TASK, 1.0)
    length, number = HEADER.unpack(setup.received(HEADER.size))
    assert number == 7
    assert decode_task(setup.received(length)) == TASK


@pytest.mark.parametrize("ran", [Done(b"1", "w"), Failed("no", "ValueError", after_s=1.5), Died("killed")])
def test_an_outcome_is_received_however_it_is_split(setup: Setup, ran: Ran) -> None:
    setup.get_ready()
    for number in (1, 2):
        setup.handle.send_task(number, TASK, 1.0)
        message = framed(number, ran)
        for byte in message[:-1]:
            setup.child.sendall(bytes([byte]))
            assert setup.handle.receive() is None
        setup.child.sendall(message[-1:])
        assert setup.handle.receive() == ran


def test_a_large_outcome_is_received_over_many_reads(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send_task(1, TASK, 1.0)
    left, received = bytes(framed(1, Done(b"x" * (1 << 20)))), None
    while received is None:
        left = left[setup.child.send(left, socket.MSG_DONTWAIT) :] if left else left
        received = setup.handle.receive()
    assert received == Done(b"x" * (1 << 20))


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(framed(2, Done()), id="of another task"),
        pytest.param(framed(1, Done()) + b"x", id="followed by something"),
        pytest.param(HEADER.pack(1, 1) + b"\xc1", id="that is not msgpack"),
        pytest.param(HEADER.pack(1, 1) + b"\x01", id="that is no outcome"),
        pytest.param(HEADER.pack(MAX_OUTCOME_BYTES + 1, 1), id="too long"),
        pytest.param(READY, id="ready again"),
    ],
)
def test_a_message_that_is_not_the_expected_outcome_is_invalid(setup: Setup, message: bytes) -> None:
    setup.get_ready()
    setup.handle.send_task(1, TASK, 1.0)
    setup.child.sendall(message)
    with pytest.raises(InvalidMessage):
        setup.handle.receive()


def test_an_outcome_before_ready_is_invalid(setup: Setup) -> None:
    setup.child.sendall(framed(0, Done()))
    with pytest.raises(InvalidMessage):
        setup.handle.receive()


def test_the_end_of_the_stream_is_no_outcome(setup: Setup) -> None:
    setup.child.close()
    with pytest.raises(EOFError):
        setup.handle.receive()


def test_what_does_not_fit_into_the_stream_is_sent_later(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send_task(1, BIG, 1.0)
    assert not setup.handle.flush()
    received = b""
    while not setup.handle.flush():
        received += setup.child.recv(1 << 20)
    received += setup.received(len(framed(1, BIG)) - len(received))
    assert received == framed(1, BIG)


def test_a_cancellation_follows_its_task_and_the_child_is_woken_again_when_it_is_sent(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send_task(1, BIG, 100.0)
    assert not setup.handle.request_stop(StopRequest.CANCEL, 50.0)
    assert setup.handle.kill_at_s == 50.0
    assert setup.wakes == 1
    received = b""
    while not setup.handle.flush():
        assert setup.wakes == 1
        received += setup.child.recv(1 << 20)
    assert setup.wakes == 2
    received += setup.received(len(framed(1, BIG)) + HEADER.size - len(received))
    assert received.endswith(HEADER.pack(0, 1))


def test_the_child_is_woken_when_its_process_is_reported_after_the_cancellation(setup: Setup) -> None:
    pidfd, setup.handle.pidfd = setup.handle.pidfd, -1
    setup.get_ready()
    setup.handle.send_task(1, TASK, 1.0)
    setup.handle.request_stop(StopRequest.CANCEL, 1.0)
    assert setup.wakes == 0
    setup.handle.set_process(os.getpid(), pidfd)
    assert setup.wakes == 1


def test_a_stop_request_never_gives_a_task_more_time(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send_task(1, TASK, 10.0)
    setup.handle.request_stop(StopRequest.CANCEL, 50.0)
    assert setup.handle.kill_at_s == 10.0


def test_writing_to_a_child_that_has_ended_is_no_error(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send_task(1, BIG, 1.0)
    setup.child.close()
    assert setup.handle.flush()
    assert setup.handle.request_stop(StopRequest.QUIT, 1.0)


def test_sending_a_task_to_a_child_that_has_ended_raises(setup: Setup) -> None:
    setup.get_ready()
    setup.child.close()
    with pytest.raises(BrokenPipeError):
        setup.handle.send_task(1, TASK, 1.0)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_handle_knows_whether_an_ended_child_had_read_its_task(setup: Setup, is_read: bool) -> None:
    setup.get_ready()
    setup.handle.send_task(1, TASK, 1.0)
    if is_read:
        setup.received(len(framed(1, TASK)))
    setup.child.close()
    with pytest.raises(EOFError):
        setup.handle.receive()
    assert setup.handle.was_task_read is is_read
