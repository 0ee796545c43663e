"""Follow-ups: jobs that come into being with a settlement, in the same step, if and only if it takes effect."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers.types import FOLLOW_UPS_KEPT, CancelResult, Revival
from fileq.core.errors import BrokerError, JobError
from fileq.core.job import MAX_JOB_BYTES, Claim, State, Version, encode
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Settlement, SettleResult, Verb, cancel, complete, release
from fileq.testing.conformance.builders import (
    DESTINATION,
    EVERY_SETTLEMENT,
    UNDECODABLE,
    MakeSettlement,
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    failed,
    ids_in,
    ledger_entry,
    names,
    places_of,
    raws_in,
    record_of,
    recovered,
    running,
    settle,
    snapshot,
    subscribed,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness

every_verb = pytest.mark.parametrize("make", EVERY_SETTLEMENT.values(), ids=map(str, EVERY_SETTLEMENT))


def follow_up(
    id: str, *, queue: str = "high", parent: str = "a", delay_ms: int = 0, at_ms: int = 0, **job: Any
) -> FollowUp:
    return FollowUp(a_job(id, priority=queue, parent_id=parent, **job), queue, delay_ms, at_ms)


def with_follow_ups(settlement: Settlement, *ids: str, **options: Any) -> Settlement:
    return replace(settlement, follow_ups=tuple(follow_up(id, **options) for id in ids))


# with a settlement


@every_verb
def test_they_are_enqueued_with_every_verb(harness: Harness, make: MakeSettlement) -> None:
    settlement = with_follow_ups(make(running(harness)), "b", "c")
    assert settle(harness, settlement) is SettleResult.DONE
    assert places_of(harness, "a") == [DESTINATION[settlement.verb]]
    assert ids_in(harness, "high") == ["b", "c"]
    assert raws_in(harness, "high") == [encode(one.job) for one in settlement.follow_ups]
    assert counter(harness, "produced") == 3
    assert drift(harness) == 0


@every_verb
def test_the_record_of_the_job_keeps_their_ids(harness: Harness, make: MakeSettlement) -> None:
    settle(harness, with_follow_ups(make(running(harness)), "b", "c"))
    assert record_of(harness, "a").follow_ups == ("b", "c")
    assert record_of(harness, "b").follow_ups == ()


def test_a_record_without_follow_ups_has_none(harness: Harness) -> None:
    settle(harness, complete(running(harness)))
    assert record_of(harness, "a").follow_ups == ()


def test_their_records_are_those_of_enqueued_jobs(harness: Harness) -> None:
    settle(harness, with_follow_ups(complete(running(harness)), "b"))
    record = record_of(harness, "b")
    assert (record.state, record.queue, record.created_ms, record.queued) == (
        State.PENDING,
        "high",
        harness.clock.ms,
        1,
    )
    assert record.raw == encode(follow_up("b").job)


def test_they_run_like_other_jobs(harness: Harness) -> None:
    settle(harness, with_follow_ups(complete(running(harness)), "b"))
    claim = claim_one(harness)
    assert claim.job is not None
    assert (claim.id, claim.job.parent_id) == ("b", "a")
    assert settle(harness, complete(claim)) is SettleResult.DONE
    assert drift(harness) == 0


def test_the_same_call_can_claim_them(harness: Harness) -> None:
    settlement = with_follow_ups(complete(running(harness)), "b")
    [claim] = harness.broker.settle_and_claim([settlement], ["w1"]).claims
    assert claim.id == "b"


def test_they_may_be_delayed_or_enqueued_for_a_time(harness: Harness) -> None:
    at_ms = harness.clock.ms + 5000
    jobs = (follow_up("later", delay_ms=1000), follow_up("then", at_ms=at_ms))
    settle(harness, replace(complete(running(harness)), follow_ups=jobs))
    assert ids_in(harness, "scheduled") == ["later", "then"]
    assert [record_of(harness, id).due_ms for id in ("later", "then")] == [harness.clock.ms + 1000, at_ms]
    assert [record_of(harness, id).since_ms for id in ("later", "then")] == [harness.clock.ms, 0]
    harness.advance(5)
    assert harness.broker.promote().count == 2
    assert ids_in(harness, "high") == ["later", "then"]


def test_the_ledger_learns_a_version_that_it_knows_already(harness: Harness) -> None:
    path = b"/data/\xff.pdf"
    enqueue(harness, "a", version=Version(path, "v1"))
    again = FollowUp(a_job("b", parent_id="a"), "low", version=Version(path, "v1", "8:1"))
    settle(harness, replace(complete(claim_one(harness)), follow_ups=(again,)))
    assert places_of(harness, "b") == ["low"]
    entry = ledger_entry(harness, path)
    assert (entry.versions, entry.device) == ((("v1", "b"),), "8:1")
    assert record_of(harness, "b").after == ("a",)


def test_their_events_follow_that_of_the_job(harness: Harness) -> None:
    claim = running(harness)
    with subscribed(harness) as next_events:
        settle(harness, with_follow_ups(complete(claim), "b", "c"))
        events = [(event.event, event.job_id) for event in next_events(3)]
    assert events == [("job:completed", "a"), ("job:created", "b"), ("job:created", "c")]


def test_two_settlements_of_one_call_have_their_own(harness: Harness) -> None:
    enqueue(harness, "x", "y")
    first, second = claims_of(harness, "w1", "w2")
    settlements = [
        with_follow_ups(complete(first), "x.1", parent="x"),
        with_follow_ups(burial(second), "y.1", parent="y"),
    ]
    assert harness.broker.settle_and_claim(settlements, []).settled == (SettleResult.DONE,) * 2
    assert [record_of(harness, id).follow_ups for id in ("x", "y")] == [("x.1",), ("y.1",)]
    assert sorted(ids_in(harness, "high")) == ["x.1", "y.1"]


def test_a_hundred_follow_ups_are_enqueued_in_order(harness: Harness) -> None:
    settle(harness, with_follow_ups(complete(running(harness)), *names(100)))
    assert ids_in(harness, "high") == names(100)
    assert record_of(harness, "a").follow_ups == tuple(names(100))


def test_a_record_keeps_the_newest_ids_of_several_settlements(harness: Harness) -> None:
    ids = names(FOLLOW_UPS_KEPT + 30)
    enqueue(harness, "a")
    for start in range(0, len(ids), 46):
        settle(harness, with_follow_ups(release(claim_one(harness, "w1")), *ids[start : start + 46], queue="low"))
    assert record_of(harness, "a").follow_ups == tuple(ids[30:])


def test_the_ids_may_be_odd(harness: Harness) -> None:
    odd = 'odd %0A "id"\n\\ ü'
    settle(harness, with_follow_ups(complete(running(harness)), odd, "b"))
    assert record_of(harness, "a").follow_ups == (odd, "b")


def test_bytes_that_are_not_a_job_can_be_buried_with_follow_ups(harness: Harness) -> None:
    harness.push_raw("low", UNDECODABLE["text"])
    claim = claim_one(harness)
    settle(harness, with_follow_ups(burial(claim), "b", parent=claim.id))
    assert (ids_in(harness, "high"), record_of(harness, claim.id).follow_ups) == (["b"], ("b",))
    assert drift(harness) == 0


def test_a_job_that_is_not_listed_any_more_leaves_no_record_behind(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 1})
    enqueue(harness, "x", "y")
    settlements = [with_follow_ups(complete(claim), f"{claim.id}.1") for claim in claims_of(harness, "w1", "w2")]
    harness.broker.settle_and_claim(settlements, [])
    assert [record is None for record in harness.broker.records(["x", "y"])] == [True, False]
    assert ids_in(harness, "high") == ["x.1", "y.1"]


# without effect


@every_verb
def test_a_fenced_settlement_adds_none(harness: Harness, make: MakeSettlement) -> None:
    claim = running(harness)
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    harness.broker.reap("w1", [recovered(suspect.claims[0])])
    before = snapshot(harness, "a", "b")
    assert settle(harness, with_follow_ups(make(claim), "b")) is SettleResult.FENCED
    assert snapshot(harness, "a", "b") == before


@every_verb
def test_a_repeated_settlement_adds_none(harness: Harness, make: MakeSettlement) -> None:
    settlement = with_follow_ups(make(running(harness)), "b")
    settle(harness, settlement)
    before = snapshot(harness, "a", "b")
    assert settle(harness, settlement) is SettleResult.DONE_ALREADY
    assert snapshot(harness, "a", "b") == before


def test_one_whose_id_has_a_record_is_left_out(harness: Harness) -> None:
    claim = running(harness)
    enqueue(harness, "b")
    settle(harness, with_follow_ups(complete(claim), "b", "c"))
    assert (ids_in(harness, "low"), ids_in(harness, "high")) == (["b"], ["c"])
    assert record_of(harness, "a").follow_ups == ("c",)
    assert drift(harness) == 0


def test_one_that_is_named_twice_is_enqueued_once(harness: Harness) -> None:
    settle(harness, with_follow_ups(complete(running(harness)), "b", "b"))
    assert (ids_in(harness, "high"), record_of(harness, "a").follow_ups) == (["b"], ("b",))


def test_a_job_does_not_follow_itself(harness: Harness) -> None:
    settle(harness, with_follow_ups(complete(running(harness)), "a"))
    assert places_of(harness, "a") == ["completed"]


def test_a_wrong_one_is_refused_before_anything_changes(harness: Harness) -> None:
    enqueue(harness, "x", "y")
    first, second = claims_of(harness, "w1", "w2")
    before = snapshot(harness, "x", "y", "b")
    long = follow_up("b", payload=Raw(b'"' + b"x" * MAX_JOB_BYTES + b'"'))
    for wrong, error in (
        (replace(follow_up("b"), queue="nowhere"), BrokerError),
        (long, JobError),
        (follow_up("b", unique_key="a\n"), JobError),
    ):
        with pytest.raises(error):
            harness.broker.settle_and_claim([complete(first), replace(complete(second), follow_ups=(wrong,))], [])
        with pytest.raises(error):
            harness.broker.reap("w2", [replace(complete(second), follow_ups=(wrong,))])
        with pytest.raises(error):
            harness.broker.cancel(["x"], {"x": [wrong]})
    assert snapshot(harness, "x", "y", "b") == before


# with a reaper, and with a cancellation


def test_a_reaper_brings_them(harness: Harness) -> None:
    running(harness)
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    settlement = with_follow_ups(burial(suspect.claims[0], died=True), "b")
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.DONE,)
    assert (places_of(harness, "a"), places_of(harness, "b")) == (["dead_letter"], ["high"])
    assert record_of(harness, "a").follow_ups == ("b",)
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.FENCED,)
    assert (ids_in(harness, "high"), drift(harness)) == (["b"], 0)


def test_of_two_reapers_one_brings_them(harness: Harness) -> None:
    running(harness)
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    brokers = (harness.broker, harness.another())

    def reap(broker: Any, id: str) -> tuple[SettleResult, ...]:
        result: tuple[SettleResult, ...] = broker.reap(
            "w1", [with_follow_ups(burial(suspect.claims[0], died=True), id)]
        )
        return result

    answers = run_concurrently(lambda: reap(brokers[0], "b"), lambda: reap(brokers[1], "c"))
    assert sorted(answers) == [(SettleResult.DONE,), (SettleResult.FENCED,)]
    assert len(ids_in(harness, "high")) == 1
    assert drift(harness) == 0


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_a_waiting_job_that_is_cancelled_brings_them(harness: Harness, delay_ms: int) -> None:
    enqueue(harness, "a", "other", delay_ms=delay_ms)
    wanted = {"a": [follow_up("b"), follow_up("c")], "unknown": [follow_up("d")]}
    assert harness.broker.cancel(["a", "unknown"], wanted) == [CancelResult.CANCELLED, CancelResult.UNKNOWN]
    assert (places_of(harness, "a"), ids_in(harness, "high")) == (["cancelled"], ["b", "c"])
    assert record_of(harness, "a").follow_ups == ("b", "c")
    assert harness.broker.cancel(["a"], {"a": [follow_up("e")]}) == [CancelResult.ENDED]
    assert (ids_in(harness, "high"), drift(harness)) == (["b", "c"], 0)


def test_a_running_job_that_is_asked_to_stop_brings_none(harness: Harness) -> None:
    claim = running(harness)
    assert harness.broker.cancel(["a"], {"a": [follow_up("b")]}) == [CancelResult.REQUESTED]
    assert ids_in(harness, "high") == []
    settle(harness, with_follow_ups(cancel(claim), "b"))
    assert ids_in(harness, "high") == ["b"]


def test_of_two_cancellations_one_brings_them(harness: Harness) -> None:
    enqueue(harness, "a")
    other = harness.another()
    run_concurrently(
        lambda: harness.broker.cancel(["a"], {"a": [follow_up("b")]}),
        lambda: other.cancel(["a"], {"a": [follow_up("c")]}),
    )
    assert len(ids_in(harness, "high")) == 1
    assert (counter(harness, "produced"), drift(harness)) == (2, 0)


# after a revival


def test_a_revived_job_adds_to_the_ids_it_has(harness: Harness) -> None:
    settle(harness, with_follow_ups(burial(running(harness)), "a.dead.1"))
    [raw] = raws_in(harness, "dead_letter")
    harness.broker.revive([Revival(raw, "a", encode(a_job("a")), "low")])
    settle(harness, complete(claim_one(harness, "w2")))
    claim: Claim = claim_one(harness, "w1")
    settle(harness, with_follow_ups(complete(claim), "a.0"))
    assert record_of(harness, "a").follow_ups == ("a.dead.1", "a.0")


def test_retries_keep_what_earlier_attempts_enqueued(harness: Harness) -> None:
    settle(harness, with_follow_ups(failed(running(harness), delay_ms=0), "b", queue="low"))
    harness.broker.promote()
    assert record_of(harness, "a").follow_ups == ("b",)
    assert {Verb.RETRY, Verb.BURY} <= EVERY_SETTLEMENT.keys()
