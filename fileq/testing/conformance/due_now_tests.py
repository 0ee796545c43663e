"""due_now: scheduled, retrying and deferred jobs go to their queues before their time."""

from fileq.core.job import State
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    an_entry,
    claim_one,
    completed,
    counter,
    dead,
    deferred,
    drift,
    enqueue,
    failed,
    foreign,
    ids_in,
    names,
    places_of,
    record_of,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def test_scheduled_retrying_and_deferred_jobs_go_to_the_end_of_their_queues(harness: Harness) -> None:
    settle(harness, failed(running(harness, "failed", queue="high"), delay_ms=60_000))
    settle(harness, deferred(running(harness, "deferred"), delay_ms=60_000))
    enqueue(harness, "delayed", delay_ms=60_000)
    enqueue(harness, "first")
    assert harness.broker.due_now(["deferred", "delayed", "failed"]) == [True] * 3
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["failed"], ["first", "deferred", "delayed"])
    assert ids_in(harness, "scheduled") == []
    record = record_of(harness, "deferred")
    assert (record.state, record.due_ms) == (State.PENDING, 0)
    assert drift(harness) == 0


def test_other_jobs_stay_where_they_are(harness: Harness) -> None:
    completed(harness, "completed")
    dead(harness, "dead")
    running(harness, "running")
    enqueue(harness, "pending")
    ids = ["completed", "dead", "running", "pending", "unknown"]
    before = snapshot(harness, *ids)
    assert harness.broker.due_now(ids) == [False] * 5
    assert snapshot(harness, *ids) == before


def test_the_same_call_twice_moves_a_job_once(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=60_000)
    assert harness.broker.due_now(["a", "a"]) == [True, False]
    before = snapshot(harness, "a")
    assert harness.broker.due_now(["a"]) == [False]
    assert snapshot(harness, "a") == before


def test_no_ids_move_nothing(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=60_000)
    assert harness.broker.due_now([]) == []
    assert places_of(harness, "a") == ["scheduled"]


def test_a_job_made_due_is_one_that_was_produced(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=60_000)
    harness.broker.due_now(["a"])
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "produced"), counter(harness, "adopted"), drift(harness)) == (1, 0, 0)


def test_a_copy_that_is_scheduled_beside_a_pending_one_is_found_by_its_record(harness: Harness) -> None:
    """The record names one copy; the other waits for its time."""
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
        settle(harness, deferred(claim_one(harness), delay_ms=1000))
    assert harness.broker.due_now(["a"]) == [True]
    assert sorted(places_of(harness, "a")) == ["low", "scheduled"]
    assert harness.broker.due_now(["a"]) == [False]
    assert drift(harness) == 0


def test_two_callers_at_the_same_time_move_each_job_once(harness: Harness) -> None:
    ids = names(100)
    harness.broker.enqueue([an_entry(id, delay_ms=60_000) for id in ids])
    other = harness.another()
    found = run_concurrently(lambda: harness.broker.due_now(ids), lambda: other.due_now(ids))
    assert sum(map(sum, found)) == 100
    assert sorted(ids_in(harness, "low")) == ids
    assert drift(harness) == 0


def test_a_thousand_in_one_call_keep_their_order(harness: Harness) -> None:
    ids = names(1000)[::-1]
    harness.broker.enqueue([an_entry(id, delay_ms=60_000) for id in ids])
    assert harness.broker.due_now(ids) == [True] * 1000
    assert ids_in(harness, "low") == ids


def test_a_job_that_is_not_in_scheduled_is_left_to_a_repair(harness: Harness) -> None:
    """Its record says that it waits, but another program has removed it."""
    enqueue(harness, "a", delay_ms=60_000)
    harness.remove_raw("scheduled", record_of(harness, "a").raw)
    before = snapshot(harness, "a")
    assert harness.broker.due_now(["a"]) == [False]
    assert snapshot(harness, "a") == before
    assert places_of(harness, "a") == []


def test_a_scheduled_copy_of_a_running_job_stays_where_it_is(harness: Harness) -> None:
    """The record is about the copy that runs."""
    enqueue(harness, "a", delay_ms=60_000)
    harness.push_raw("low", record_of(harness, "a").raw)
    claim_one(harness)
    before = snapshot(harness, "a")
    assert harness.broker.due_now(["a"]) == [False]
    assert snapshot(harness, "a") == before
