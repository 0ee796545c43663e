"""A loop in its thread: it goes on through whatever happens, says so once, and ends when told to."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.runtime import service as module
from fileq.runtime.service import Loop
from tests.support.clocks import RecordedEvents
from tests.support.waiting import wait_until


class Turns:
    """What each turn does, told by the test one by one; a turn waits until it is told."""

    def __init__(self) -> None:
        self.told = RecordedEvents()
        self.wake = threading.Event()
        self._next: SimpleQueue[float | Exception] = SimpleQueue()
        self.taken = 0
        self.loop = self.new_loop(longest_pause_s=0.01)

    def new_loop(self, longest_pause_s: float) -> Loop:
        turning = SimpleNamespace(name="tests", turn=self._turn, wake=self.wake)
        return Loop(turning, emit=self.told, longest_pause_s=longest_pause_s)

    def _turn(self) -> float:
        does = self._next.get()
        self.wake.clear()
        self.taken += 1
        if isinstance(does, Exception):
            raise does
        return does

    def turn(self, *does: float | Exception) -> None:
        """So many turns, and the last of them is over."""
        wanted = self.taken + len(does)
        for one in does:
            self._next.put(one)
        wait_until(lambda: self.taken == wanted)

    def end(self) -> None:
        self.loop.quiet()
        self._next.put(0.0)
        self.loop.stop(10)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    monkeypatch.setattr(module, "FAILED_PAUSE_S", 0.0)
    turns = Turns()
    turns.loop.start()
    yield turns
    turns.end()


def settled(loop: Loop, problem: Callable[[str], bool]) -> None:
    wait_until(lambda: problem(loop.problem()), what="the problem it tells")


def test_an_outage_is_a_problem_until_a_turn_succeeds_and_is_told_twice(turns):
    turns.turn(0.0, BrokerUnavailable("away"), BrokerError("forbidden"))
    settled(turns.loop, lambda problem: problem == "forbidden")
    turns.turn(0.0)
    settled(turns.loop, lambda problem: problem == "")
    assert [event for event, _ in turns.told.events] == ["broker.lost", "broker.restored"]


def test_a_failure_is_reported_once_with_its_exception_and_the_loop_continues(turns):
    turns.turn(*(ZeroDivisionError("again") for _ in range(5)))
    settled(turns.loop, lambda problem: "again" in problem)
    assert turns.told.count("loop.failed") == 1
    assert isinstance(turns.told.fields("loop.failed")["exception"], ZeroDivisionError)
    turns.turn(KeyError("another"), 0.0)
    settled(turns.loop, lambda problem: problem == "")
    assert turns.told.count("loop.failed") == 2
    assert turns.loop.is_turning()


def test_a_pause_ends_when_it_is_woken(turns):
    turns.turn(60.0)
    turns._next.put(60.0)
    turns.wake.set()
    wait_until(lambda: turns.taken == 2)


def test_the_pause_of_an_outage_is_not_cut_short_by_being_woken():
    turns = Turns()
    turns.loop = turns.new_loop(longest_pause_s=60.0)
    turns.loop._outage._tries = 16  # as if it had lasted for long
    turns.loop.start()
    turns.turn(BrokerUnavailable("away"))
    settled(turns.loop, lambda problem: problem == "away")
    turns._next.put(0.0)
    turns.wake.set()
    with pytest.raises(TimeoutError):
        wait_until(lambda: turns.taken == 2, 0.2)
    turns.loop.stop(10)
    assert turns.loop.has_stopped


def test_a_stop_ends_a_long_pause_and_may_be_repeated(turns):
    turns.turn(3600.0)
    turns.loop.stop(10)
    turns.loop.stop(10)
    assert turns.loop.has_stopped
    assert turns.loop.problem() == "stopping"
    assert turns.loop.is_turning(), "it was told to stop: it is not stuck"


def test_one_that_never_started_can_be_stopped():
    turns = Turns()
    turns.loop.stop(10)
    assert turns.loop.has_stopped


def test_one_that_has_stood_still_for_long_is_not_turning(turns, monkeypatch):
    turns.turn(0.0)
    assert turns.loop.is_turning()
    monkeypatch.setattr(module, "STUCK_S", -1.0)
    assert not turns.loop.is_turning()


def test_a_turn_that_stands_still_is_stuck_and_a_long_pause_is_not(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: /healthz asks this. A loop that pauses for a minute, such as that of the batches, was stuck at its end."""
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    wait_until(lambda: not turns.loop.is_turning(), what="its turn waits for the test")
    turns.turn(1000.0)
    wait_until(turns.loop.is_turning, what="it pauses")
    turns.wake.set()
    wait_until(lambda: not turns.loop.is_turning(), what="the next turn waits for the test")
