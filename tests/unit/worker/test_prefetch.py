"""How many jobs a worker claims in advance."""

from __future__ import annotations

import pytest

from fileq.worker.prefetch import (
    AHEAD_S,
    CYCLE_S,
    FIRST_PAUSE_S,
    HELD_MAX,
    LONGEST_PAUSE_S,
    TURNOVER_S,
    WINDOW_S,
    Prefetch,
)
from tests.support.clocks import ManualClocks


class Worker:
    """Ends tasks at a rate."""

    def __init__(self, count: int = 4, *, is_allowed: bool = True) -> None:
        self.clocks = ManualClocks()
        self.count = count
        self.prefetch = Prefetch(count, is_allowed=is_allowed, monotonic=self.clocks.monotonic)

    def work(self, rate: float, seconds: float = 10 * WINDOW_S, *, running: int | None = None) -> int:
        """While so many tasks run, by default one in each slot. Returns the depth afterwards."""
        steps = max(1, round(seconds / 0.001))
        done = 0
        for step in range(1, steps + 1):
            self.clocks.advance(seconds / steps)
            now_done = int(rate * seconds * step / steps)
            self.prefetch.ended(now_done - done, self.count if running is None else running)
            done = now_done
        return self.prefetch.depth


def test_a_worker_that_has_ended_nothing_claims_nothing_in_advance() -> None:
    assert Worker().prefetch.depth == 0


def test_what_is_claimed_in_advance_begins_within_a_few_milliseconds_at_the_present_rate() -> None:
    for rate in (2000, 3000, 5000, 7000):
        assert rate * AHEAD_S - 8 < Worker().work(rate) <= rate * AHEAD_S


def test_each_of_two_calls_brings_whole_batches() -> None:
    for count in (2, 4, 8, 16, 24, 32):
        for rate in (1.1 * count / TURNOVER_S, 5000, 7000, 9000, 11_000, 1_000_000):
            if depth := Worker(count).work(rate):
                assert (count + depth) / 2 % count == 0
                assert count + depth <= HELD_MAX


def test_a_worker_with_too_many_slots_for_two_batches_claims_what_it_may() -> None:
    assert Worker(40).work(1_000_000) == HELD_MAX - 40


def test_no_more_than_a_round_trip_is_worth_are_held_at_once() -> None:
    assert Worker(4).work(1_000_000) == HELD_MAX - 4
    assert Worker(HELD_MAX).work(1_000_000) == 0
    assert Worker(HELD_MAX + 1).work(1_000_000) == 0


def test_slots_that_take_longer_for_a_job_claim_nothing_in_advance() -> None:
    assert Worker(16).work(0.9 * 16 / TURNOVER_S) == 0
    assert Worker(16).work(1.1 * 16 / TURNOVER_S) > 0


def test_a_worker_that_waits_for_its_server_most_of_the_time_claims_in_advance() -> None:
    rate = 0.5 * 16 / TURNOVER_S
    assert Worker(16).work(rate, running=16) == 0
    assert Worker(16).work(rate, running=9) == 0
    assert Worker(16).work(rate, running=7) == 16


def test_a_worker_with_little_to_do_claims_nothing_in_advance() -> None:
    assert Worker(16).work(0.9 * 16 / CYCLE_S, running=1) == 0
    assert Worker(16).work(1.1 * 16 / CYCLE_S, running=1) == 16


def test_a_worker_with_one_slot_claims_nothing_in_advance_so_that_its_jobs_keep_their_order() -> None:
    assert Worker(1).work(1_000_000) == 0
    assert Worker(2).work(1_000_000) > 0


def test_after_a_pause_the_rate_begins_at_nothing() -> None:
    worker = Worker()
    assert worker.work(8000)
    worker.clocks.advance(0.5)
    worker.prefetch.ended(0, 0)
    assert worker.prefetch.depth == 0


def test_a_worker_with_limited_routes_claims_nothing_in_advance() -> None:
    assert Worker(is_allowed=False).work(1_000_000) == 0


def test_after_a_job_has_waited_too_long_it_stops_for_a_while_that_grows() -> None:
    worker = Worker()
    pauses = []
    for _ in range(10):
        assert worker.work(8000) > 0
        worker.prefetch.give_up()
        assert worker.prefetch.depth == 0
        before = worker.clocks.seconds
        while not worker.work(8000, WINDOW_S):
            pass
        pauses.append(worker.clocks.seconds - before)
    assert pauses[0] == pytest.approx(FIRST_PAUSE_S, abs=0.05)
    assert pauses[1] == pytest.approx(2 * FIRST_PAUSE_S, abs=0.05)
    assert max(pauses) == pytest.approx(LONGEST_PAUSE_S, abs=0.05)
    worker.work(8000, 11.0)
    worker.prefetch.give_up()
    before = worker.clocks.seconds
    while not worker.work(8000, WINDOW_S):
        pass
    assert worker.clocks.seconds - before == pytest.approx(FIRST_PAUSE_S, abs=0.05)
