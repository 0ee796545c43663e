"""The circuit breaker. The test moves the clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeAlias

import pytest

from fileq.config.schema import CircuitBreakerSettings
from fileq.worker.breakers import FAILED_KEPT, SLICES, UNFAILED_FIRST_S, Breaker

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]
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


_NUMBERS = itertools.count()


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.record(f"f{next(_NUMBERS)}", False)


def succeed(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.record(f"s{next(_NUMBERS)}", True)


def opened(breaker: Breaker) -> Breaker:
    fail(breaker, 4)
    assert breaker.state == "open"
    return breaker


def half_opened(breaker: Breaker, clock: Clock) -> Breaker:
    opened(breaker)
    clock.now_s += 30
    breaker.await_probe()
    assert breaker.state == "half-open"
    return breaker


def probed(breaker: Breaker, clock: Clock) -> Breaker:
    assert half_opened(breaker, clock).admits("probe")
    return breaker


def test_a_closed_breaker_admits_every_job(breaker: Breaker) -> None:
    breaker.await_probe()
    assert [breaker.admits(claim) for claim in range(16)] == [True] * 16


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


def test_an_open_breaker_admits_nothing_until_its_cooldown_is_over(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now_s += 29.999
    breaker.await_probe()
    assert (breaker.admits("early"), breaker.state) == (False, "open")
    assert breaker.cooldown_left_s() == pytest.approx(0.001)
    clock.now_s += 0.001
    assert (breaker.admits("probe"), breaker.state) == (True, "half-open")


def switch_threads_in(*codes: CodeType) -> Callable[[FrameType, str, object], TraceFunction | None]:
    """A trace function that lets other threads run before each line of these functions, as they may at any time."""

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if frame.f_code not in codes:
            return None
        time.sleep(0.001)
        return trace

    return trace


@pytest.mark.parametrize("is_half_open", [False, True])
def test_only_one_of_a_hundred_concurrent_callers_gets_the_probe(
    breaker: Breaker, clock: Clock, is_half_open: bool
) -> None:
    """Whether they come when the cooldown is just over, or when a probe is available again."""
    opened(breaker)
    clock.now_s += 30
    if is_half_open:
        breaker.await_probe()
    barrier = threading.Barrier(100)
    admitted: list[bool] = []

    def call() -> None:
        barrier.wait()
        admitted.append(breaker.admits(16))

    threading.settrace(switch_threads_in(Breaker.admits.__code__, Breaker._is_probe_free.__code__))
    try:
        threads = [threading.Thread(target=call) for _ in range(100)]
        for thread in threads:
            thread.start()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    for thread in threads:
        thread.join()
    assert sorted(admitted) == [False] * 99 + [True]
    assert breaker.state == "half-open"


def test_a_probe_that_succeeds_closes_it_with_a_clean_window(breaker: Breaker, clock: Clock) -> None:
    probed(breaker, clock)
    breaker.record("probe", True)
    assert breaker.state == "closed"
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_a_probe_that_fails_opens_it_for_a_whole_cooldown(breaker: Breaker, clock: Clock) -> None:
    probed(breaker, clock)
    clock.now_s += 10
    breaker.record("probe", False)
    assert breaker.state == "open"
    clock.now_s += 29
    assert not breaker.admits("early")
    clock.now_s += 1
    assert breaker.admits("next probe")


def test_a_breaker_whose_claim_finds_no_job_still_awaits_its_probe(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock).await_probe()
    assert breaker.is_probe_due
    assert breaker.admits("probe")
    assert not breaker.is_probe_due


@pytest.mark.parametrize("probe", ["probe", 7])
def test_a_probe_that_is_no_sample_is_available_again(breaker: Breaker, clock: Clock, probe: object) -> None:
    assert half_opened(breaker, clock).admits(probe)
    assert not breaker.admits("another")
    breaker.record(probe, None)
    assert breaker.state == "half-open"
    assert breaker.admits("another")


def test_results_of_jobs_claimed_before_do_not_decide(breaker: Breaker, clock: Clock) -> None:
    probed(breaker, clock)
    breaker.record("claimed before", True)
    breaker.record("claimed before too", False)
    assert breaker.state == "half-open"


def test_results_that_come_while_open_do_not_count_later(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    fail(breaker, 50)
    clock.now_s += 30
    assert breaker.admits("probe")
    breaker.record("probe", True)
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_every_change_is_reported_once(breaker: Breaker, clock: Clock, changes: list[tuple[str, str]]) -> None:
    probed(breaker, clock)
    breaker.record("probe", True)
    assert changes == [("closed", "open"), ("open", "half-open"), ("half-open", "closed")]


def test_failures_that_leave_the_window_are_forgotten(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 60
    succeed(breaker, 3)
    fail(breaker, 1)
    assert breaker.state == "closed"  # 1 of 4


def test_while_a_probe_runs_there_is_no_other(breaker: Breaker, clock: Clock) -> None:
    probed(breaker, clock)
    clock.now_s += 300
    breaker.await_probe()
    assert (breaker.is_probe_due, breaker.admits("another")) == (False, False)


# each job counts once


def test_a_job_that_fails_again_and_again_counts_once(breaker: Breaker) -> None:
    for attempt in range(50):
        breaker.record(attempt, False, job="bad")
    fail(breaker, 2)
    assert breaker.state == "closed", "three jobs have failed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_the_success_of_a_job_replaces_its_failure(breaker: Breaker) -> None:
    for n in range(3):
        breaker.record(n, False, job=f"job-{n}")
    for n in range(3):
        breaker.record(10 + n, True, job=f"job-{n}")
    fail(breaker, 2)
    assert breaker.state == "closed"  # 2 of 5
    fail(breaker, 1)
    assert breaker.state == "open"


def test_the_last_failure_of_a_job_says_when_it_leaves_the_window(breaker: Breaker, clock: Clock) -> None:
    breaker.record(1, False, job="bad")
    clock.now_s += 50
    breaker.record(2, False, job="bad")
    clock.now_s += 50
    fail(breaker, 3)
    assert breaker.state == "open"


def test_what_the_breaker_keeps_does_not_grow_with_the_number_of_jobs(clock: Clock) -> None:
    """With a threshold that is never reached, 50,000 results of one window need no more room than the limits say."""
    breaker = Breaker(CircuitBreakerSettings(failure_threshold=0.9, window=60.0, min_samples=4), clock=clock)
    succeed(breaker, 10)

    def size() -> int:
        return sum(len(value) for value in vars(breaker).values() if hasattr(value, "__len__"))

    for _ in range(25_000):
        clock.now_s += 0.001
        succeed(breaker, 1)
        fail(breaker, 1)
    assert (breaker.state, size() <= FAILED_KEPT + SLICES + 100) == ("closed", True)
    clock.now_s += 60
    fail(breaker, 3)
    assert breaker.state == "closed", "too few samples: all the others have left the window"
    fail(breaker, 1)
    assert breaker.state == "open"


# the probe


def test_just_after_the_cooldown_a_job_that_has_not_failed_is_preferred_as_the_probe(
    breaker: Breaker, clock: Clock
) -> None:
    opened(breaker)
    clock.now_s += 30
    assert not breaker.admits("failed", has_failed=True)
    assert breaker.admits("fresh")
    assert not breaker.admits("another")
    breaker.record("fresh", True)
    assert breaker.state == "closed"


def test_if_every_job_has_failed_one_of_them_is_the_probe(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now_s += 30
    assert not breaker.admits("failed", has_failed=True)
    clock.now_s += UNFAILED_FIRST_S
    assert [breaker.admits(claim, has_failed=True) for claim in ("failed", "failed too")] == [True, False]
    breaker.record("failed", False)
    assert breaker.state == "open"


# routes without jobs


def test_a_breaker_without_jobs_for_a_window_closes_with_a_clean_window(
    breaker: Breaker, clock: Clock, changes: list[tuple[str, str]]
) -> None:
    half_opened(breaker, clock)
    clock.now_s += 29.9
    breaker.close_if_idle()
    assert breaker.state == "half-open", "the last job was seen 59.9 s ago"
    clock.now_s += 0.1
    breaker.close_if_idle()
    assert changes[-1] == ("half-open", "closed")
    fail(breaker, 3)
    assert breaker.state == "closed"


def test_a_job_that_asks_or_ends_keeps_a_breaker_from_closing(breaker: Breaker, clock: Clock) -> None:
    half_opened(breaker, clock)
    clock.now_s += 50
    breaker.record("claimed before", True)
    clock.now_s += 50
    breaker.close_if_idle()
    assert breaker.state == "half-open"
    assert breaker.admits("probe")
    clock.now_s += 1000
    breaker.close_if_idle()
    assert breaker.state == "half-open", "the probe decides, however long it runs"
    breaker.record("probe", None)
    clock.now_s += 59
    breaker.close_if_idle()
    assert breaker.state == "half-open"
    clock.now_s += 1
    breaker.close_if_idle()
    assert breaker.state == "closed"


def test_a_cooldown_that_is_longer_than_the_window_is_not_cut_short(clock: Clock) -> None:
    breaker = Breaker(CircuitBreakerSettings(window=60.0, cooldown_period=600.0, min_samples=4), clock=clock)
    opened(breaker)
    clock.now_s += 599
    breaker.close_if_idle()
    assert breaker.state == "open"
    clock.now_s += 1
    breaker.close_if_idle()
    assert breaker.state == "closed"
