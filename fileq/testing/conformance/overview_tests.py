"""overview: the census, the front of each queue, the workers and the last hours in one call."""

from msgspec.structs import replace

from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    claim_one,
    completed,
    enqueue,
    foreign,
    register,
    running,
    settle,
    without_left_ms,
)
from fileq.testing.conformance.harness import Harness


def test_the_overview_of_an_empty_broker_is_empty(harness: Harness) -> None:
    overview = harness.broker.overview()
    assert overview.census == harness.broker.census()
    assert (overview.fronts, overview.workers, overview.hours) == ({}, (), {})


def test_it_equals_the_separate_calls(harness: Harness) -> None:
    completed(harness, "c")
    running(harness, "r")
    register(harness, "idle")
    enqueue(harness, "first", "second")
    overview = harness.broker.overview(3)
    assert overview.census == harness.broker.census()
    assert without_left_ms(overview.workers) == without_left_ms(harness.broker.workers())
    assert overview.hours == harness.broker.hourly(3)
    assert overview.fronts == {"low": harness.broker.peek("low", 1)[0]}
    assert overview.first == {}


def test_it_has_the_first_jobs_of_each_place(harness: Harness) -> None:
    completed(harness, "c1")
    completed(harness, "c2")
    enqueue(harness, "first", "second", "third")
    enqueue(harness, "later", delay_ms=1000)
    overview = harness.broker.overview(1, jobs=2)
    assert overview.first == {
        place: tuple(harness.broker.peek(place, 2)) for place in ("low", "scheduled", "completed")
    }
    assert [len(raws) for raws in overview.first.values()] == [2, 1, 2]


def test_it_counts_the_orders_that_are_not_finished(harness: Harness) -> None:
    for id in ("a", "b"):
        settle(harness, replace(complete(running(harness, id)), order=b"of " + id.encode()))
    assert harness.broker.overview().orders == 2
    harness.broker.finish_orders([("a", b"")])
    assert harness.broker.overview().orders == 1


def test_the_front_is_the_next_one_out(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    harness.push_raw("high", foreign("f"))
    assert harness.broker.overview().fronts == {
        "high": foreign("f"),
        "low": harness.broker.peek("low", 2)[0],
    }
    assert claim_one(harness).raw == foreign("f")
    assert set(harness.broker.overview().fronts) == {"low"}


def test_a_worker_is_shown_with_its_job_and_start_time(harness: Harness) -> None:
    started = harness.clock.ms
    claim = running(harness, "a")
    harness.advance(5)
    [view] = harness.broker.overview().workers
    assert (view.slot, view.is_alive, view.raw, view.since_ms) == ("w1", True, claim.raw, started)
    settle(harness, complete(claim))
    [view] = harness.broker.overview().workers
    assert (view.raw, view.since_ms) == (b"", 0)


def test_bytes_that_are_not_a_job_have_no_start_time(harness: Harness) -> None:
    harness.push_raw("low", b"not a job")
    claim_one(harness)
    [view] = harness.broker.overview().workers
    assert (view.raw, view.since_ms) == (b"not a job", 0)


def test_the_requested_hours_are_shown(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.advance(3600)
    enqueue(harness, "b")
    hour = harness.clock.ms // 3_600_000
    assert harness.broker.overview(2).hours == {hour - 1: {"produced": 1}, hour: {"produced": 1}}
    assert harness.broker.overview(1).hours == {hour: {"produced": 1}}
