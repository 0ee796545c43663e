"""The census: every place and every counter in one consistent read, with no job missing or doubled."""

from threading import Event

from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.builders import (
    MakeSettlement,
    an_entry,
    burial,
    claim_one,
    claims_of,
    completed,
    counter,
    dead,
    drift,
    enqueue,
    failed,
    foreign,
    names,
    register,
    running,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness

HOUR_MS = 3_600_000


def test_an_empty_broker_is_all_zeros(harness: Harness) -> None:
    census = harness.broker.census()
    assert dict(census.pending) == {"high": 0, "low": 0}
    assert (census.scheduled, census.running, census.dead, census.completed, census.cancelled) == (0, 0, 0, 0, 0)
    assert (census.heartbeats, census.drift, census.paused) == (0, 0, frozenset())
    assert census.now_ms == harness.clock.ms


def test_every_place_is_counted(harness: Harness) -> None:
    completed(harness, "c1", "c2")
    dead(harness, "d1")
    settle(harness, cancel(running(harness, "x1")))
    settle(harness, failed(running(harness, "r1")))
    running(harness, "run1", "w2")
    enqueue(harness, "s1", delay_ms=1000)
    enqueue(harness, "h1", "h2", "h3", queue="high")
    enqueue(harness, "l1", "l2")
    census = harness.broker.census()
    assert dict(census.pending) == {"high": 3, "low": 2}
    assert (census.scheduled, census.running, census.dead, census.completed, census.cancelled) == (2, 1, 1, 2, 1)
    assert census.heartbeats == 2
    assert census.counters["produced"] == 12
    assert census.drift == 0


def test_the_drift_is_zero_after_every_verb(harness: Harness) -> None:
    enqueue(harness, *names(10))
    harness.push_raw("high", foreign("f1"))
    harness.push_raw("low", b"not a job")
    claims = claims_of(harness, *names(12, "slot"))
    assert drift(harness) == 0
    by_id = {claim.id: claim for claim in claims}
    harness.broker.settle_and_claim(
        [
            complete(by_id["job-0000"]),
            failed(by_id["job-0001"]),
            burial(by_id["job-0002"]),
            cancel(by_id["job-0003"]),
            complete(by_id["f1"]),
            *(burial(claim) for claim in claims if claim.job is None),
        ],
        [],
    )
    harness.broker.deregister(["slot-0005"])
    harness.broker.cancel(["job-0001"])
    harness.broker.discard([("job-0002", burial(by_id["job-0002"]).next_raw)])
    counters = harness.broker.census().counters
    assert {name: counters[name] for name in ("produced", "adopted", "completed", "cancelled", "deleted")} == {
        "produced": 10,
        "adopted": 2,
        "completed": 2,
        "cancelled": 2,
        "deleted": 1,
    }
    assert drift(harness) == 0


def test_what_other_programs_pushed_is_negative_drift_until_it_is_claimed(harness: Harness) -> None:
    for i in range(3):
        harness.push_raw("low", foreign(f"f{i}"))
    harness.push_raw("low", b"not a job")
    assert drift(harness) == -4
    claims_of(harness, "w1", "w2")
    assert drift(harness) == -2
    claims_of(harness, "w3", "w4")
    assert drift(harness) == 0
    assert (counter(harness, "adopted"), counter(harness, "produced")) == (4, 0)


def test_a_job_is_adopted_once(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    settle(harness, failed(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    claim_one(harness)
    harness.broker.deregister(["w1"])
    settle(harness, complete(claim_one(harness)))
    assert counter(harness, "adopted") == 1
    assert drift(harness) == 0


def test_the_census_is_consistent_while_other_clients_work(harness: Harness) -> None:
    """Slots come and go and jobs move all the time; no census finds a job missing or doubled."""
    enqueue(harness, *names(20))
    other = harness.another()
    is_done = Event()

    def work() -> None:
        ends: list[MakeSettlement] = [complete, failed, cancel, burial]
        try:
            for i in range(100):
                slots = (f"w{i}", f"v{i}")
                register(harness, *slots, broker=other)
                first, second = other.settle_and_claim([], slots).claims
                other.settle_and_claim([ends[i % 4](first)], [])
                other.deregister(slots)  # the second goes back
                assert second.slot == slots[1]
                other.enqueue([an_entry(f"more-{i}")])
        finally:
            is_done.set()

    def look() -> set[int]:
        drifts = set()
        while not is_done.is_set():
            drifts.add(drift(harness))
        return drifts

    _, drifts = run_concurrently(work, look)
    assert drifts <= {0}
    assert drift(harness) == 0


def test_hourly_counters_are_kept_by_the_hour(harness: Harness) -> None:
    hour = harness.clock.ms // HOUR_MS
    enqueue(harness, "a", "b")
    harness.advance(3600)
    settle(harness, complete(claim_one(harness)))
    harness.advance(7200)
    settle(harness, failed(claim_one(harness), kind="OSError"))
    hours = harness.broker.hourly(24)
    assert set(hours) == {hour, hour + 1, hour + 3}
    assert hours[hour]["produced"] == 2
    assert hours[hour + 1] == {"consumed": 1, "completed": 1}
    assert hours[hour + 3] == {"consumed": 1, "failed": 1, "retried": 1, "error:OSError": 1}


def test_only_the_requested_hours_are_returned(harness: Harness) -> None:
    enqueue(harness, "a")
    hour = harness.clock.ms // HOUR_MS
    assert set(harness.broker.hourly(1)) == {hour}
    harness.advance(3600)
    assert harness.broker.hourly(1) == {}
    assert set(harness.broker.hourly(2)) == {hour}
    assert harness.broker.hourly(0) == {}


def test_an_hour_ends_on_the_hour(harness: Harness) -> None:
    hour = harness.clock.ms // HOUR_MS
    harness.advance(((hour + 1) * HOUR_MS - harness.clock.ms - 1) / 1000)
    enqueue(harness, "a")
    harness.advance(0.001)
    enqueue(harness, "b")
    assert harness.broker.hourly(2) == {hour: {"produced": 1}, hour + 1: {"produced": 1}}


def test_hourly_counters_are_removed_after_their_retention(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"observability.stats_retention": "48h"})
    enqueue(harness, "a")
    harness.advance(46 * 3600)
    assert len(harness.broker.hourly(1000)) == 1
    harness.advance(4 * 3600)
    assert harness.broker.hourly(1000) == {}
    assert counter(harness, "produced") == 1


def test_counters_outlive_the_jobs_they_counted(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 1})
    completed(harness, *names(5))
    harness.advance(2 * harness.config.worker.history_ttl)
    census = harness.broker.census()
    assert (census.completed, census.counters["completed"]) == (1, 5)
    assert census.drift == 0
