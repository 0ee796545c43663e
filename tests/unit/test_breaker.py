"""The breaker, with a clock that stands still until it is moved."""

from __future__ import annotations

import threading
import time

import pytest

from fileq.config import CircuitBreakerSettings
from fileq.core.breaker import Breaker

SETTINGS = CircuitBreakerSettings(failure_threshold=0.5, window=60.0, cooldown_period=30.0, min_samples=4)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def breaker(clock: Clock, changes: list[tuple[str, str]]) -> Breaker:
    return Breaker(SETTINGS, clock=clock, on_change=lambda old, new: changes.append((old, new)))


def fail(breaker: Breaker, times: int) -> None:
    for n in range(times):
        breaker.ended(f"f{n}", False)


def succeed(breaker: Breaker, times: int) -> None:
    for n in range(times):
        breaker.ended(f"s{n}", True)


def opened(breaker: Breaker) -> Breaker:
    fail(breaker, 4)
    assert breaker.state == "open"
    return breaker


def half_opened(breaker: Breaker, clock: Clock) -> Breaker:
    opened(breaker)
    clock.now_s += 30
    assert breaker.permits(16) == 1
    return breaker


def test_a_closed_breaker_permits_whatever_is_wanted(breaker: Breaker) -> None:
    assert breaker.permits(16) == 16
    assert breaker.permits(0) == 0


def test_too_few_samples_never_open_it(breaker: Breaker) -> None:
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_the_threshold_is_reached_at_exactly_its_rate(breaker: Breaker) -> None:
    succeed(breaker, 3)
    fail(breaker, 2)
    assert breaker.state == "closed"  # 2 of 5
    fail(breaker, 1)
    assert breaker.state == "open"  # 3 of 6


def test_samples_older_than_the_window_do_not_count(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 60
    fail(breaker, 1)
    assert breaker.state == "closed"


def test_an_open_breaker_permits_nothing_until_its_cooldown_is_over(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now_s += 29.999
    assert breaker.permits(16) == 0
    assert breaker.opens_in_s() == pytest.approx(0.001)
    clock.now_s += 0.001
    assert breaker.permits(16) == 1
    assert breaker.state == "half-open"


class Hesitant(Breaker):
    """Whoever looks for the probe lets all others go first: a gate that is not locked lets several through."""

    looks = 0
    _there: object = None

    @property
    def _probe(self) -> object:
        there = self._there
        self.looks += 1
        time.sleep(0.001)
        return there

    @_probe.setter
    def _probe(self, probe: object) -> None:
        self._there = probe


@pytest.mark.parametrize("is_half_open", [False, True])
def test_only_one_of_a_hundred_concurrent_callers_gets_the_probe(clock: Clock, is_half_open: bool) -> None:
    """Whether they come when the cooldown is just over, or when a probe is available again."""
    breaker = opened(Hesitant(SETTINGS, clock=clock))
    clock.now_s += 30
    if is_half_open:
        assert breaker.permits(16) == 1
        breaker.took([])
    barrier = threading.Barrier(100)
    got: list[int] = []

    def ask() -> None:
        barrier.wait()
        got.append(breaker.permits(16))

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [0] * 99 + [1]
    assert breaker.state == "half-open"
    assert isinstance(breaker, Hesitant)
    assert breaker.looks >= 100, "it was the gate that they stood at"


def test_a_probe_that_succeeds_closes_it_with_a_clean_window(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock).took(["probe"])
    breaker.ended("probe", True)
    assert breaker.state == "closed"
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_a_probe_that_fails_opens_it_for_a_whole_cooldown(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock).took(["probe"])
    clock.now_s += 10
    breaker.ended("probe", False)
    assert breaker.state == "open"
    clock.now_s += 29
    assert breaker.permits(1) == 0
    clock.now_s += 1
    assert breaker.permits(1) == 1


def test_a_probe_that_finds_no_job_is_available_again(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock).took([])
    assert breaker.state == "half-open"
    assert breaker.permits(16) == 1


@pytest.mark.parametrize("probe", ["probe", 7])
def test_a_probe_that_is_no_sample_is_available_again(breaker: Breaker, clock: Clock, probe: object) -> None:
    half_opened(breaker, clock).took([probe])
    assert breaker.permits(16) == 0
    breaker.ended(probe, None)
    assert breaker.state == "half-open"
    assert breaker.permits(16) == 1


def test_results_of_jobs_claimed_before_do_not_decide(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock).took(["probe"])
    breaker.ended("claimed before", True)
    breaker.ended("claimed before too", False)
    assert breaker.state == "half-open"


def test_results_that_come_while_open_do_not_count_later(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    fail(breaker, 50)
    clock.now_s += 30
    assert breaker.permits(1) == 1
    breaker.took(["probe"])
    breaker.ended("probe", True)
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_every_change_is_told_once(breaker: Breaker, clock: Clock, changes: list[tuple[str, str]]) -> None:
    half_opened(breaker, clock).took(["probe"])
    breaker.ended("probe", True)
    assert changes == [("closed", "open"), ("open", "half-open"), ("half-open", "closed")]
