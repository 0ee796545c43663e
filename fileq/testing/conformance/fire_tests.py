"""fire: each slot of a schedule is fired once, or counted as missed, by any number of schedulers."""

from typing import Any

import pytest

from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedules import Fire, FireResult, Overlap, ScheduleState
from fileq.brokers.types import LeaseStatus, Revival
from fileq.core.errors import BrokerError, JobError
from fileq.core.job import State, Version, encode
from fileq.core.outcome import FollowUp
from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    ids_in,
    ledger_entry,
    places_of,
    reap_all,
    record_of,
    register,
    settle,
    snapshot,
    subscribed,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

NAME = "nightly"


def entry(id: str, queue: str = "low", **job: Any) -> FollowUp:
    return FollowUp(a_job(id, priority=queue, **job), queue, is_own=True)


def a_fire(slot: int, id: str | None = None, **options: Any) -> Fire:
    """The slot of this number; its job is `sched.<slot>` unless another id is given."""
    options.setdefault("entry", entry(id or f"sched.{slot}"))
    return Fire(NAME, "r1", slot * 1000, (slot + 1) * 1000, **options)


def define(harness: Harness, slot: int = 1) -> None:
    harness.broker.define_schedule(NAME, "r1", slot * 1000)


def fire(harness: Harness, slot: int, **options: Any) -> FireResult:
    return harness.broker.fire(a_fire(slot, **options))


def state(harness: Harness) -> ScheduleState:
    return harness.broker.schedules()[NAME]


def test_a_fired_slot_enqueues_its_job_and_sets_the_next_one(harness: Harness) -> None:
    define(harness)
    assert fire(harness, 1) is FireResult.FIRED
    assert state(harness) == ScheduleState("r1", 2000, 1000, "sched.1", runs=1)
    assert places_of(harness, "sched.1") == ["low"]
    record = record_of(harness, "sched.1")
    assert (record.state, record.raw, record.waits_for) == (State.PENDING, encode(a_job("sched.1")), "")
    assert (counter(harness, "produced"), drift(harness)) == (1, 0)


def test_its_event_is_published(harness: Harness) -> None:
    define(harness)
    with subscribed(harness) as next_events:
        fire(harness, 1)
        [event] = next_events(1)
    assert (event.event, event.job_id) == ("job:created", "sched.1")


def test_the_job_may_be_delayed_and_about_a_version(harness: Harness) -> None:
    define(harness)
    one = FollowUp(a_job("s"), "high", delay_ms=500, version=Version(b"/data/a", "v1"))
    assert fire(harness, 1, entry=one) is FireResult.FIRED
    assert (places_of(harness, "s"), record_of(harness, "s").queue) == (["scheduled"], "high")
    assert ledger_entry(harness, b"/data/a").versions == (("v1", "s"),)


def test_a_repeat_is_stale(harness: Harness) -> None:
    define(harness)
    fire(harness, 1)
    before = snapshot(harness, "sched.1"), state(harness)
    assert fire(harness, 1) is FireResult.STALE
    assert fire(harness, 1, id="another") is FireResult.STALE
    assert (snapshot(harness, "sched.1"), state(harness)) == before


@pytest.mark.parametrize("why", ["unknown", "removed", "paused", "another revision", "another slot"])
def test_what_is_not_due_is_stale_and_changes_nothing(harness: Harness, why: str) -> None:
    if why != "unknown":
        define(harness)
    if why == "removed":
        harness.broker.remove_schedule(NAME)
    if why == "paused":
        harness.broker.pause_schedule(NAME)
    if why == "another revision":
        harness.broker.define_schedule(NAME, "r2", 1000)
    before = snapshot(harness, "sched.1"), harness.broker.schedules()
    assert fire(harness, 2 if why == "another slot" else 1, missed=5) is FireResult.STALE
    assert (snapshot(harness, "sched.1"), harness.broker.schedules()) == before


def test_of_several_schedulers_one_fires_each_slot(harness: Harness) -> None:
    define(harness)
    brokers = (harness.broker, harness.another(), harness.another())

    def fire_all(broker: FullBroker, mark: str) -> list[FireResult]:
        return [broker.fire(a_fire(slot, f"{mark}.{slot}")) for slot in range(1, 31)]

    answers = run_concurrently(*(lambda b=b, m=m: fire_all(b, m) for b, m in zip(brokers, "xyz", strict=True)))
    assert sum(results.count(FireResult.FIRED) for results in answers) == 30
    slots = sorted(int(id.split(".")[1]) for id in ids_in(harness, "low"))
    assert slots == list(range(1, 31))
    assert (state(harness).runs, drift(harness)) == (30, 0)


def test_a_slot_without_a_job_is_passed_and_its_misses_are_counted(harness: Harness) -> None:
    define(harness)
    assert fire(harness, 1, entry=None, missed=4) is FireResult.PASSED
    assert fire(harness, 2, missed=2) is FireResult.FIRED
    assert state(harness) == ScheduleState("r1", 3000, 2000, "sched.2", runs=1, missed=6)
    assert fire(harness, 3, entry=None) is FireResult.PASSED
    assert (state(harness).last_job_id, state(harness).last_ms) == ("sched.2", 3000)


def test_one_step_can_end_several_slots(harness: Harness) -> None:
    define(harness)
    several = Fire(NAME, "r1", 1000, 5000, entry("sched.4"), missed=3, last_ms=4000)
    assert harness.broker.fire(several) is FireResult.FIRED
    assert state(harness) == ScheduleState("r1", 5000, 4000, "sched.4", runs=1, missed=3)


def test_a_job_that_has_a_record_is_not_enqueued_again(harness: Harness) -> None:
    """A schedule that was removed and added again may have a slot that fired before."""
    define(harness)
    fire(harness, 1)
    harness.broker.remove_schedule(NAME)
    define(harness)
    assert fire(harness, 1, missed=1, overlap=Overlap.SKIP) is FireResult.DUPLICATE
    assert fire(harness, 2, id="sched.1", overlap=Overlap.SKIP) is FireResult.DUPLICATE, "it is not in its own way"
    assert state(harness) == ScheduleState("r1", 3000, 2000, "sched.1", runs=0, missed=1)
    assert (ids_in(harness, "low"), drift(harness)) == (["sched.1"], 0)


def test_a_clock_that_steps_back_fires_nothing_again(harness: Harness) -> None:
    define(harness)
    fire(harness, 1)
    harness.clock.ms -= 3_600_000
    assert fire(harness, 1) is FireResult.STALE
    assert harness.broker.promote().next_fire_ms == 2000
    harness.clock.ms += 3_600_000


def test_a_wrong_job_is_refused_and_the_slot_is_still_due(harness: Harness) -> None:
    define(harness)
    for wrong, error in (
        ({"entry": FollowUp(a_job("s"), "nowhere")}, BrokerError),
        ({"entry": entry("s", unique_key="")}, JobError),
        ({"cancel_follow_ups": (FollowUp(a_job("s"), "nowhere"),)}, BrokerError),
    ):
        with pytest.raises(error):
            fire(harness, 1, **wrong)
    assert fire(harness, 1) is FireResult.FIRED


def test_a_job_whose_unique_key_is_taken_is_skipped(harness: Harness) -> None:
    harness.broker.enqueue([])
    define(harness)
    assert fire(harness, 1, entry=entry("s1", unique_key="k")) is FireResult.FIRED
    assert fire(harness, 2, entry=entry("s2", unique_key="k")) is FireResult.SKIPPED
    assert (state(harness).last_job_id, state(harness).missed, state(harness).last_ms) == ("s1", 1, 2000)
    settle(harness, complete(claim_one(harness)))
    assert fire(harness, 3, entry=entry("s3", unique_key="k")) is FireResult.FIRED


# overlap


def last_is(harness: Harness, how: str) -> None:
    """Fires slot 1 and brings its job into this state."""
    define(harness)
    delay_ms = 60_000 if how == "scheduled" else 0
    assert fire(harness, 1, entry=FollowUp(a_job("sched.1"), "low", delay_ms, is_own=True)) is FireResult.FIRED
    ends: dict[str, Any] = {
        "retrying": failed,
        "deferred": deferred,
        "completed": complete,
        "dead": burial,
        "cancelled": cancel,
    }
    if how == "running" or how in ends:
        claim = claim_one(harness)
        if how in ends:
            settle(harness, ends[how](claim))


UNFINISHED = ("pending", "scheduled", "running", "retrying", "deferred")
ENDED = ("completed", "dead", "cancelled")


@pytest.mark.parametrize("overlap", Overlap, ids=str)
@pytest.mark.parametrize("how", ENDED)
def test_after_an_ended_job_every_slot_fires(harness: Harness, how: str, overlap: Overlap) -> None:
    last_is(harness, how)
    assert fire(harness, 2, overlap=overlap) is FireResult.FIRED
    assert record_of(harness, "sched.2").waits_for == ""
    assert record_of(harness, "sched.1").state == how


@pytest.mark.parametrize("how", UNFINISHED)
def test_skip_counts_the_slot_as_missed(harness: Harness, how: str) -> None:
    last_is(harness, how)
    before = snapshot(harness, "sched.1")
    assert fire(harness, 2, overlap=Overlap.SKIP, missed=2) is FireResult.SKIPPED
    assert snapshot(harness, "sched.1") == before
    assert state(harness) == ScheduleState("r1", 3000, 2000, "sched.1", runs=1, missed=3)


@pytest.mark.parametrize("how", UNFINISHED)
def test_allow_runs_beside_the_last_one(harness: Harness, how: str) -> None:
    last_is(harness, how)
    assert fire(harness, 2, overlap=Overlap.ALLOW) is FireResult.FIRED
    register(harness, "w8", "w9")
    claims = harness.broker.settle_and_claim([], ["w8", "w9"]).claims
    assert [claim.is_blocked for claim in claims if claim.id == "sched.2"] == [False]


@pytest.mark.parametrize("how", UNFINISHED)
def test_queue_blocks_the_new_job_until_the_last_one_has_ended(harness: Harness, how: str) -> None:
    last_is(harness, how)
    assert fire(harness, 2, overlap=Overlap.QUEUE, entry=entry("sched.2", "high")) is FireResult.FIRED
    assert (record_of(harness, "sched.2").waits_for, record_of(harness, "sched.2").after) == ("sched.1", ())
    claim = claim_one(harness, "w9")
    assert (claim.id, claim.is_blocked) == ("sched.2", True)
    [again] = harness.broker.settle_and_claim([], ["w9"]).claims
    assert again.is_blocked
    assert [renewal.claim.is_blocked for renewal in harness.broker.renew([("w9", b"")]) if renewal.claim] == [True]


def test_the_queued_job_runs_when_the_last_one_has_ended(harness: Harness) -> None:
    last_is(harness, "running")
    fire(harness, 2, overlap=Overlap.QUEUE, entry=entry("sched.2", "high"))
    claim = claim_one(harness, "w9")
    assert claim.is_blocked
    settle(harness, deferred(claim, delay_ms=0))
    [held] = harness.broker.settle_and_claim([], ["w1"]).claims
    settle(harness, complete(held))
    harness.broker.promote()
    again = claim_one(harness, "w9")
    assert (again.id, again.is_blocked) == ("sched.2", False)


def test_a_last_job_whose_record_is_gone_blocks_nothing(harness: Harness) -> None:
    last_is(harness, "running")
    fire(harness, 2, overlap=Overlap.QUEUE)
    harness.remove_record("sched.1")
    assert not claim_one(harness, "w9").is_blocked
    assert fire(harness, 3, overlap=Overlap.QUEUE, id="x") is FireResult.FIRED


def test_a_queued_job_of_a_file_also_names_the_earlier_jobs_of_the_file(harness: Harness) -> None:
    path = b"/data/a"
    enqueue(harness, "early", version=Version(path, "v1"))
    define(harness)
    fire(harness, 1)
    one = FollowUp(a_job("sched.2"), "high", version=Version(path, "v2"), is_own=True)
    fire(harness, 2, overlap=Overlap.QUEUE, entry=one)
    record = record_of(harness, "sched.2")
    assert (record.after, record.waits_for) == (("early",), "sched.1")
    assert claim_one(harness, "w9").is_blocked


def test_a_revived_last_job_blocks_again(harness: Harness) -> None:
    last_is(harness, "running")
    fire(harness, 2, overlap=Overlap.QUEUE, entry=entry("sched.2", "high"))
    [held] = harness.broker.settle_and_claim([], ["w1"]).claims
    settlement = burial(held)
    settle(harness, settlement)
    harness.broker.revive([Revival(settlement.next_raw, "sched.1", encode(a_job("sched.1")), "low")])
    assert claim_one(harness, "w9").is_blocked


@pytest.mark.parametrize("how", ["pending", "scheduled", "retrying", "deferred"])
def test_cancel_withdraws_a_last_job_that_waits(harness: Harness, how: str) -> None:
    last_is(harness, how)
    follow_ups = (FollowUp(a_job("told", parent_id="sched.1"), "high"),)
    assert fire(harness, 2, overlap=Overlap.CANCEL, cancel_follow_ups=follow_ups) is FireResult.FIRED
    assert (places_of(harness, "sched.1"), places_of(harness, "told")) == (["cancelled"], ["high"])
    record = record_of(harness, "sched.1")
    assert (record.state, record.error, record.follow_ups) == (State.CANCELLED, "cancelled", ("told",))
    assert (counter(harness, "cancelled"), drift(harness)) == (1, 0)
    assert [claim.is_blocked for claim in claims_of(harness, "w8", "w9")] == [False, False]
    assert state(harness) == ScheduleState("r1", 3000, 2000, "sched.2", runs=2)


def test_a_follow_up_of_the_cancelled_job_that_is_the_new_job_is_enqueued_once(harness: Harness) -> None:
    last_is(harness, "pending")
    follow_ups = (FollowUp(a_job("sched.2", parent_id="sched.1"), "high", is_own=True),)
    assert fire(harness, 2, overlap=Overlap.CANCEL, cancel_follow_ups=follow_ups) is FireResult.DUPLICATE
    assert (places_of(harness, "sched.2"), drift(harness)) == (["high"], 0)


def test_cancel_publishes_the_event_of_the_last_job(harness: Harness) -> None:
    last_is(harness, "pending")
    with subscribed(harness) as next_events:
        fire(harness, 2, overlap=Overlap.CANCEL)
        events = [(event.event, event.job_id) for event in next_events(2)]
    assert events == [("job:cancelled", "sched.1"), ("job:created", "sched.2")]


def test_cancel_asks_a_running_job_to_stop(harness: Harness) -> None:
    last_is(harness, "running")
    follow_ups = (FollowUp(a_job("told", parent_id="sched.1"), "high"),)
    assert fire(harness, 2, overlap=Overlap.CANCEL, cancel_follow_ups=follow_ups) is FireResult.FIRED
    assert ids_in(harness, "high") == []
    assert record_of(harness, "sched.1").is_cancel_requested
    [held] = harness.broker.settle_and_claim([], ["w1"]).claims
    assert [renewal.status for renewal in harness.broker.renew([("w1", held.raw)])] == [LeaseStatus.CANCEL]
    assert claim_one(harness, "w9").is_blocked
    settle(harness, cancel(held))
    [again] = harness.broker.settle_and_claim([], ["w9"]).claims
    assert not again.is_blocked


def test_a_stale_cancel_leaves_the_last_job_alone(harness: Harness) -> None:
    last_is(harness, "pending")
    before = snapshot(harness, "sched.1")
    assert fire(harness, 3, overlap=Overlap.CANCEL) is FireResult.STALE
    assert fire(harness, 2, entry=None, overlap=Overlap.CANCEL) is FireResult.PASSED
    assert snapshot(harness, "sched.1") == before


def test_a_fired_job_whose_worker_dies_is_recovered_and_still_blocks(harness: Harness) -> None:
    last_is(harness, "running")
    fire(harness, 2, overlap=Overlap.QUEUE, entry=entry("sched.2", "high"))
    expire_leases(harness)
    reap_all(harness)
    assert claim_one(harness, "w9").is_blocked
    assert drift(harness) == 0
