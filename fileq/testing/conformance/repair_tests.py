"""The methods of Repairer: they find damage in one consistent read and repair it in one atomic step.

A repair that is repeated, or that finds no damage, changes nothing.
"""

from typing import Any

from fileq.brokers.types import Entry, Record, UnrecordedJob
from fileq.core.job import State, encode
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    a_job,
    claim_one,
    completed,
    counter,
    dead,
    deferred,
    drift,
    enqueue,
    failed,
    foreign,
    has_record,
    names,
    places_of,
    record_of,
    recovered,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def all_ids(harness: Harness) -> list[str]:
    return sorted(id for page in harness.broker.ids() for id in page)


def unrecorded_job(place: str, id: str, raw: bytes, state: State, **fields: Any) -> UnrecordedJob:
    return UnrecordedJob(place, Record(id, state, raw, "low", created_ms=17, **fields))


# ids


def test_every_record_is_named_by_its_id(harness: Harness) -> None:
    assert all_ids(harness) == []
    enqueue(harness, *names(1100))
    completed(harness, "done")
    dead(harness, "dead")
    pages = list(harness.broker.ids(100))
    assert {id for page in pages for id in page} == {*names(1100), "done", "dead"}
    assert max(map(len, pages)) <= 100


def test_an_expired_record_is_not_named(harness: Harness) -> None:
    completed(harness, "a")
    harness.advance(harness.config.worker.history_ttl)
    assert all_ids(harness) == []


# lost and restore


def every_state(harness: Harness) -> list[str]:
    """Makes one job in each state, each with a correct record; returns their ids."""
    completed(harness, "completed")
    dead(harness, "dead")
    settle(harness, failed(running(harness, "retrying"), delay_ms=60_000))
    settle(harness, deferred(running(harness, "deferred"), delay_ms=60_000))
    enqueue(harness, "cancelled", delay_ms=60_000)
    harness.broker.cancel(["cancelled"])
    running(harness, "running")
    enqueue(harness, "scheduled", delay_ms=60_000)
    enqueue(harness, "pending", queue="high")
    return ["completed", "dead", "retrying", "deferred", "cancelled", "running", "scheduled", "pending"]


def test_a_job_that_is_where_its_record_says_is_not_lost(harness: Harness) -> None:
    ids = [*every_state(harness), "unknown"]
    before = snapshot(harness, *ids)
    assert harness.broker.lost(ids) == [False] * 9
    assert harness.broker.restore(ids) == [False] * 9
    assert snapshot(harness, *ids) == before
    assert (harness.broker.lost([]), harness.broker.restore([])) == ([], [])


def test_a_lost_job_goes_back_to_the_place_in_its_record(harness: Harness) -> None:
    every_state(harness)
    delayed = dict.fromkeys(("scheduled", "retrying", "deferred"), "scheduled")
    places = {"pending": "high", **delayed, "dead": "dead_letter"}
    for id, place in places.items():
        before = record_of(harness, id)
        assert before.state == id
        harness.remove_raw(place, before.raw)
        assert drift(harness) == 1
        assert harness.broker.lost([id]) == [True]
        assert drift(harness) == 1, "looking changes nothing"
        assert harness.broker.restore([id, id]) == [True, False]
        assert (places_of(harness, id), record_of(harness, id)) == ([place], before)
        assert (harness.broker.restore([id]), drift(harness)) == ([False], 0)


def test_a_job_that_no_slot_runs_any_more_goes_to_the_front_of_its_queue(harness: Harness) -> None:
    claim = running(harness, "a")
    enqueue(harness, "b")
    harness.remove_raw("processing", claim.raw, "w1")
    assert harness.broker.lost(["a", "b"]) == [True, False]
    assert harness.broker.restore(["a", "b"]) == [True, False]
    assert places_of(harness, "a") == ["low"]
    assert record_of(harness, "a").state is State.PENDING
    again = claim_one(harness)
    assert again.id == "a"
    settle(harness, complete(again))
    assert (counter(harness, "adopted"), drift(harness)) == (0, 0)


def test_a_restored_job_is_claimed_as_one_that_was_accounted_for(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.remove_raw("low", record_of(harness, "a").raw)
    assert harness.broker.restore(["a"]) == [True]
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "adopted"), drift(harness)) == (0, 0)


def test_a_restored_job_comes_due_when_it_would_have(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=5_000)
    harness.remove_raw("scheduled", record_of(harness, "a").raw)
    harness.broker.restore(["a"])
    assert harness.broker.promote().next_due_ms == harness.clock.ms + 5_000


def test_a_job_named_twice_is_restored_once(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.remove_raw("low", record_of(harness, "a").raw)
    assert harness.broker.restore(["a", "a"]) == [True, False]
    assert places_of(harness, "a") == ["low"]
    assert drift(harness) == 0


def test_two_repairs_restore_a_job_once(harness: Harness) -> None:
    ids = names(20)
    enqueue(harness, *ids)
    for id in ids:
        harness.remove_raw("low", record_of(harness, id).raw)
    other = harness.another()
    answers = run_concurrently(lambda: harness.broker.restore(ids), lambda: other.restore(ids))
    assert sum(map(sum, answers)) == 20
    assert (harness.broker.census().pending["low"], drift(harness)) == (20, 0)


# unrecorded and create_record


def test_a_job_that_has_a_record_or_is_gone_is_left_alone(harness: Harness) -> None:
    enqueue(harness, "a")
    raw = record_of(harness, "a").raw
    jobs = [
        unrecorded_job("low", "a", raw, State.PENDING),
        unrecorded_job("low", "b", encode(a_job("b")), State.PENDING),
    ]
    before = snapshot(harness, "a", "b")
    assert harness.broker.unrecorded(jobs) == [False, False]
    assert harness.broker.create_record(jobs) == [False, False]
    assert snapshot(harness, "a", "b") == before
    assert (harness.broker.unrecorded([]), harness.broker.create_record([])) == ([], [])


def test_a_waiting_job_gets_a_record_and_is_accounted_for(harness: Harness) -> None:
    enqueue(harness, "a")
    raw = record_of(harness, "a").raw
    harness.remove_record("a")
    lost = unrecorded_job("low", "a", raw, State.PENDING)
    assert harness.broker.unrecorded([lost]) == [True]
    assert not has_record(harness, "a"), "looking changes nothing"
    assert harness.broker.create_record([lost, lost]) == [True, False]
    record = record_of(harness, "a")
    assert (record.state, record.raw, record.queue, record.queued, record.created_ms) == ("pending", raw, "low", 1, 17)
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "adopted"), drift(harness)) == (0, 0)


def test_a_scheduled_a_dead_and_a_running_job_get_their_records(harness: Harness) -> None:
    dead_raw = dead(harness, "dead")
    claim = running(harness, "running")
    enqueue(harness, "scheduled", delay_ms=60_000)
    due = record_of(harness, "scheduled")
    jobs = [
        unrecorded_job("scheduled", "scheduled", due.raw, State.SCHEDULED),
        unrecorded_job("dead_letter", "dead", dead_raw, State.DEAD, error="no way", ended_ms=18),
        unrecorded_job("processing", "running", claim.raw, State.RUNNING, slot="w1", started_ms=19),
    ]
    for id in ("dead", "running", "scheduled"):
        harness.remove_record(id)
    assert harness.broker.unrecorded(jobs) == [True] * 3
    assert harness.broker.create_record(jobs) == [True] * 3
    assert harness.broker.create_record(jobs) == [False] * 3
    scheduled, buried, run = (record_of(harness, id) for id in ("scheduled", "dead", "running"))
    assert (scheduled.state, scheduled.due_ms, scheduled.queued) == ("scheduled", due.due_ms, 0)
    assert (buried.state, buried.error, buried.ended_ms, buried.queued) == ("dead", "no way", 18, 0)
    assert (run.state, run.slot, run.started_ms, run.queued) == ("running", "w1", 19, 0)
    assert harness.broker.lost(["scheduled", "dead", "running"]) == [False] * 3
    harness.advance(2 * harness.config.worker.history_ttl)
    assert has_record(harness, "dead"), "it lives as long as it is dead"
    assert drift(harness) == 0


# balance


def test_balance_changes_a_counter_only_if_the_drift_is_exactly_as_given(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    harness.change_counter("produced", 3)
    assert harness.broker.balance(2) is False
    assert drift(harness) == 3
    hours = harness.broker.hourly(1)
    assert harness.broker.balance(3) is True
    assert (drift(harness), counter(harness, "deleted"), counter(harness, "adopted")) == (0, 3, 0)
    assert harness.broker.balance(3) is False, "repeated, it changes nothing"
    assert harness.broker.hourly(1) == hours


def test_a_negative_drift_counts_as_adopted(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    harness.change_counter("produced", -2)
    assert harness.broker.balance(-2) is True
    assert (drift(harness), counter(harness, "adopted"), counter(harness, "deleted")) == (0, 2, 0)


def test_jobs_that_other_programs_pushed_can_be_left_out_of_the_balance(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.push_raw("low", foreign("f"))
    harness.change_counter("produced", 5)
    assert drift(harness) == 4
    assert harness.broker.balance(4, -1) is True
    assert (drift(harness), counter(harness, "deleted")) == (-1, 5)


def test_balance_counts_the_processing_lists_of_unregistered_slots(harness: Harness) -> None:
    running(harness, "a")
    harness.remove_registration("w1")
    assert harness.broker.balance(1) is False
    assert harness.broker.balance(0, 0) is True
    harness.advance(harness.config.worker.heartbeat_ttl)
    [suspect] = harness.broker.suspects(sweep=True)
    harness.broker.reap("w1", [recovered(claim) for claim in suspect.claims])
    assert drift(harness) == 0


def test_a_created_record_has_the_unique_key_of_its_job(harness: Harness) -> None:
    job = a_job("a", unique_key="k")
    harness.broker.enqueue([Entry(job, "low")])
    harness.remove_record("a")
    assert harness.broker.create_record([unrecorded_job("low", "a", encode(job), State.PENDING, unique_key="k")]) == [
        True
    ]
    assert record_of(harness, "a").unique_key == "k"
    assert harness.broker.enqueue([Entry(a_job("b", unique_key="k"), "low")]).existing == ("a",)
