"""The handle on one child, with the test at the child's end of the stream."""

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from fileq.core.job import ClaimKey
from fileq.core.outcome import Died, Done, Failed, Ran, Task, TaskOutcome
from fileq.core.settlement import StopRequest
from fileq.worker.executors.process.child_handle import ChildHandle, InvalidMessage
from fileq.worker.executors.process.messages import (
    HEADER,
    MAX_OUTCOME_BYTES,
    READY,
    WAKE_SIGNAL,
    TokenReader,
    decode_task,
    framed,
)

TASK = Task(ClaimKey("key", 1), b"raw", 3, b"/data/\xff", (b"/data",), 2, 30.0)
LONG = Task(ClaimKey("key", 2), b"raw", 3, b"", (), 2, 900.0)
BIG = Task(ClaimKey("big", 1), b"x" * (4 << 20), 0, b"", (), 1, 30.0)


class Setup:
    """A handle whose child is this process itself; `wakes` counts its signals."""

    def __init__(self) -> None:
        self.handle = ChildHandle()
        self.child, self.tokens = self.handle.open_stream(1)
        self.reader = TokenReader(self.tokens.child_end)
        self.ended: list[tuple[Task, TaskOutcome]] = []
        self.handle.set_process(os.getpid(), os.pidfd_open(os.getpid()))
        self.wakes = 0
        self.former = signal.signal(WAKE_SIGNAL, self._on_wake)

    def _on_wake(self, _number: int, _frame: object) -> None:
        self.wakes += 1

    def get_ready(self) -> None:
        self.child.sendall(READY)
        assert self.receive() is None
        assert self.handle.is_ready

    def receive(self) -> TaskOutcome | None:
        """The outcome of a task that has ended with this read."""
        self.handle.receive(self.ended)
        return self.ended.pop()[1] if self.ended else None

    def take(self, number: int) -> bool:
        """Whether the child may run the task of this number."""
        return self.reader.take(number.to_bytes(4, "little"))

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
    for expected in (1, 2):
        assert setup.handle.send([TASK])
        length, number = HEADER.unpack(setup.received(HEADER.size))
        assert number == expected
        assert decode_task(setup.received(length)) == TASK
        setup.child.sendall(framed(number, Done()))
        setup.receive()


@pytest.mark.parametrize("ran", [Done(b"1", "w"), Failed("no", "ValueError", after_s=1.5), Died("killed")])
def test_an_outcome_is_received_however_it_is_split(setup: Setup, ran: Ran) -> None:
    setup.get_ready()
    for number in (1, 2):
        setup.handle.send([TASK])
        message = framed(number, ran)
        for byte in message[:-1]:
            setup.child.sendall(bytes([byte]))
            assert setup.receive() is None
        setup.child.sendall(message[-1:])
        assert setup.receive() == ran


def test_a_large_outcome_is_received_over_many_reads(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK])
    left, received = bytes(framed(1, Done(b"x" * (1 << 20)))), None
    while received is None:
        left = left[setup.child.send(left, socket.MSG_DONTWAIT) :] if left else left
        received = setup.receive()
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
    setup.handle.send([TASK])
    setup.child.sendall(message)
    with pytest.raises(InvalidMessage):
        setup.receive()


def test_an_outcome_before_ready_is_invalid(setup: Setup) -> None:
    setup.child.sendall(framed(0, Done()))
    with pytest.raises(InvalidMessage):
        setup.receive()


def test_the_end_of_the_stream_is_no_outcome(setup: Setup) -> None:
    setup.child.close()
    with pytest.raises(EOFError):
        setup.receive()


def test_what_does_not_fit_into_the_stream_is_sent_later(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send([BIG])
    assert not setup.handle.flush()
    received = b""
    while not setup.handle.flush():
        received += setup.child.recv(1 << 20)
    received += setup.received(len(framed(1, BIG)) - len(received))
    assert received == framed(1, BIG)


def test_a_cancellation_follows_its_task_and_the_child_is_woken_again_when_it_is_sent(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send([BIG])
    kill_at_s = setup.handle.kill_at_s - 10.0
    assert not setup.handle.request_stop(StopRequest.CANCEL, kill_at_s)
    assert setup.handle.kill_at_s == kill_at_s
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
    setup.handle.send([TASK])
    setup.handle.request_stop(StopRequest.CANCEL, 1.0)
    assert setup.wakes == 0
    setup.handle.set_process(os.getpid(), pidfd)
    assert setup.wakes == 1


def test_a_stop_request_never_gives_a_task_more_time(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK])
    kill_at_s = setup.handle.kill_at_s
    setup.handle.request_stop(StopRequest.CANCEL, kill_at_s + 50.0)
    assert setup.handle.kill_at_s == kill_at_s


def test_writing_to_a_child_that_has_ended_is_no_error(setup: Setup) -> None:
    setup.get_ready()
    assert not setup.handle.send([BIG])
    setup.child.close()
    assert setup.handle.flush()
    assert setup.handle.request_stop(StopRequest.QUIT, 1.0)


def test_sending_a_task_to_a_child_that_has_ended_raises(setup: Setup) -> None:
    setup.get_ready()
    setup.child.close()
    with pytest.raises(BrokenPipeError):
        setup.handle.send([TASK])


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_handle_knows_whether_an_ended_child_had_begun_its_task(setup: Setup, is_taken: bool) -> None:
    setup.get_ready()
    setup.handle.send([TASK])
    if is_taken:
        assert setup.take(1)
    setup.child.close()
    with pytest.raises(EOFError):
        setup.receive()
    assert setup.handle.has_begun() is is_taken


def test_several_outcomes_in_one_read_end_their_tasks_in_order(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK, BIG, TASK])  # which the child has not read
    setup.child.sendall(framed(1, Done(b"1")) + framed(2, Done(b"2")) + framed(3, Done(b"3"))[:-1])
    setup.handle.receive(setup.ended)
    assert setup.ended == [(TASK, Done(b"1")), (BIG, Done(b"2"))]
    assert setup.handle.task is TASK
    setup.child.sendall(framed(3, Done(b"3"))[-1:])
    setup.handle.receive(setup.ended)
    assert setup.ended[2:] == [(TASK, Done(b"3"))]
    assert setup.handle.task is None
    assert setup.handle.jobs_done == 3


def test_an_outcome_that_skips_a_task_is_invalid(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK, TASK])
    setup.child.sendall(framed(2, Done()))
    with pytest.raises(InvalidMessage):
        setup.receive()


def test_the_time_of_a_task_starts_with_the_outcome_of_the_one_before(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK, LONG])
    before_s = time.monotonic()
    assert setup.handle.kill_at_s <= before_s + TASK.timeout_s
    setup.child.sendall(framed(1, Done()))
    setup.receive()
    assert before_s + LONG.timeout_s <= setup.handle.kill_at_s <= time.monotonic() + LONG.timeout_s


@pytest.mark.parametrize(("taken", "outcomes"), [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
def test_tasks_that_the_child_has_not_begun_are_taken_back_and_it_keeps_one_at_most(
    setup: Setup, taken: int, outcomes: int
) -> None:
    setup.get_ready()
    tasks = [Task(ClaimKey("key", n), b"raw", 3, b"", (), 2, 30.0) for n in range(4)]
    setup.handle.send(tasks)
    for number in range(1, taken + 1):
        assert setup.take(number)
    for number in range(1, outcomes + 1):
        setup.child.sendall(framed(number, Done()))
    back = setup.handle.take_back()
    if outcomes:
        setup.handle.receive(setup.ended)
    kept = tasks[taken - 1] if taken > outcomes else None if outcomes else tasks[3]
    assert (setup.handle.task, list(setup.handle.queued)) == (kept, [])
    assert back == [task for task in tasks[outcomes:] if task is not kept]
    assert [task for task, _ in setup.ended] == tasks[:outcomes]


def test_a_task_that_was_taken_back_is_not_the_childs_any_more(setup: Setup) -> None:
    setup.get_ready()
    setup.handle.send([TASK, TASK, TASK])
    assert setup.take(1)
    assert len(setup.handle.take_back()) == 2
    assert not setup.take(2)
    setup.child.sendall(framed(1, Done()))
    setup.receive()
    setup.handle.send([TASK])
    assert [setup.take(number) for number in (2, 3, 4, 5)] == [False, False, True, False]
