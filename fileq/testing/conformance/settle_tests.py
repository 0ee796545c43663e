"""What holds for every verb that settles a claim: it takes effect once, and only for the slot that holds the job."""

import pytest

from fileq.core.job import Claim
from fileq.core.settlement import SettleResult, Verb, complete, release
from fileq.testing.conformance.builders import (
    DESTINATION,
    EVERY_SETTLEMENT,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    failed,
    names,
    places_of,
    raw_held_by,
    raws_in,
    reap_all,
    record_of,
    recovered,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

pytestmark = pytest.mark.parametrize("verb", Verb)


def claim_lost_to_a_reaper(harness: Harness) -> Claim:
    """The claim of w1 to a job that was reaped and that w2 holds now."""
    claim = running(harness, "a", "w1")
    expire_leases(harness)
    assert reap_all(harness) == [SettleResult.DONE]
    assert claim_one(harness, "w2").id == "a"
    return claim


def test_a_settled_job_is_in_one_place_and_its_slot_is_free(harness: Harness, verb: Verb) -> None:
    claim = running(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](claim)) is SettleResult.DONE
    assert places_of(harness, "a") == [DESTINATION[verb]]
    assert raw_held_by(harness, "w1") == b""
    assert drift(harness) == 0


def test_the_same_call_twice_is_done_already(harness: Harness, verb: Verb) -> None:
    settlement = EVERY_SETTLEMENT[verb](running(harness, "a"))
    settle(harness, settlement)
    before = snapshot(harness, "a")
    assert settle(harness, settlement) is SettleResult.DONE_ALREADY
    assert settle(harness, settlement) is SettleResult.DONE_ALREADY
    assert snapshot(harness, "a") == before
    assert counter(harness, "fenced") == 0


def test_a_repeat_is_done_already_even_when_the_slot_holds_the_next_job(harness: Harness, verb: Verb) -> None:
    enqueue(harness, "b", queue="high")
    settlement = EVERY_SETTLEMENT[verb](claim_one(harness))
    enqueue(harness, "c", queue="high")
    [following] = harness.broker.settle_and_claim([settlement], ["w1"]).claims
    before = snapshot(harness, "b", "c")
    assert settle(harness, settlement) is SettleResult.DONE_ALREADY
    assert snapshot(harness, "b", "c") == before
    assert settle(harness, complete(following)) is SettleResult.DONE


def test_after_losing_the_lease_it_changes_nothing_and_is_fenced(harness: Harness, verb: Verb) -> None:
    stale = claim_lost_to_a_reaper(harness)
    before = snapshot(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](stale)) is SettleResult.FENCED
    assert snapshot(harness, "a") == before
    assert places_of(harness, "a") == ["processing:w2"]
    assert counter(harness, "fenced") == 1


def test_after_losing_the_lease_it_changes_nothing_even_if_the_slot_is_registered_again(
    harness: Harness, verb: Verb
) -> None:
    stale = claim_lost_to_a_reaper(harness)
    register(harness, "w1")
    before = snapshot(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](stale)) is SettleResult.FENCED
    assert snapshot(harness, "a") == before


def test_a_reaped_job_that_no_other_slot_claimed_is_fenced_too(harness: Harness, verb: Verb) -> None:
    """The job is back in its queue: the outcome of the old holder comes too late."""
    stale = running(harness, "a")
    expire_leases(harness)
    reap_all(harness)
    before = snapshot(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](stale)) is SettleResult.FENCED
    assert snapshot(harness, "a") == before
    assert places_of(harness, "a") == ["low"]


def test_after_deregistering_it_changes_nothing(harness: Harness, verb: Verb) -> None:
    stale = running(harness, "a")
    harness.broker.deregister(["w1"])
    before = snapshot(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](stale)) is SettleResult.FENCED
    assert snapshot(harness, "a") == before


def test_an_expired_lease_that_was_not_reaped_still_counts(harness: Harness, verb: Verb) -> None:
    claim = running(harness, "a")
    expire_leases(harness)
    assert settle(harness, EVERY_SETTLEMENT[verb](claim)) is SettleResult.DONE
    assert places_of(harness, "a") == [DESTINATION[verb]]
    assert drift(harness) == 0


def test_one_slot_cannot_settle_for_another(harness: Harness, verb: Verb) -> None:
    enqueue(harness, "a", "b")
    mine, theirs = claims_of(harness, "w1", "w2")
    forged = Claim("w1", mine.token + 17, theirs.queue, theirs.raw, theirs.job, theirs.record_id)
    before = snapshot(harness, "a", "b")
    assert settle(harness, EVERY_SETTLEMENT[verb](forged)) is SettleResult.FENCED
    assert snapshot(harness, "a", "b") == before


def test_settling_is_a_heartbeat(harness: Harness, verb: Verb) -> None:
    claim = running(harness, "a")
    harness.advance(20)
    settle(harness, EVERY_SETTLEMENT[verb](claim))
    harness.advance(20)
    assert harness.broker.suspects() == []
    harness.advance(10)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]


def test_a_thousand_in_one_call(harness: Harness, verb: Verb) -> None:
    ids, slots = names(1000), names(1000, "slot")
    enqueue(harness, *ids)
    claims = claims_of(harness, *slots)
    settlements = [EVERY_SETTLEMENT[verb](claim) for claim in claims]
    assert harness.broker.settle_and_claim(settlements, []).settled == (SettleResult.DONE,) * 1000
    census = harness.broker.census()
    assert census.running == 0
    assert census.drift == 0
    assert len(raws_in(harness, DESTINATION[verb])) == 1000
    assert harness.broker.settle_and_claim(settlements, []).settled == (SettleResult.DONE_ALREADY,) * 1000
    assert harness.broker.census() == census


def test_one_stale_settlement_does_not_stop_the_others(harness: Harness, verb: Verb) -> None:
    stale = claim_lost_to_a_reaper(harness)
    enqueue(harness, "b")
    fresh = claim_one(harness, "w3")
    settlements = [EVERY_SETTLEMENT[verb](stale), EVERY_SETTLEMENT[verb](fresh)]
    assert harness.broker.settle_and_claim(settlements, []).settled == (SettleResult.FENCED, SettleResult.DONE)
    assert places_of(harness, "b") == [DESTINATION[verb]]


def test_the_attempt_is_written_into_the_record(harness: Harness, verb: Verb) -> None:
    """But a deferral is no attempt."""
    claim = running(harness, "a")
    started_ms = harness.clock.ms
    harness.advance(3)
    settlement = EVERY_SETTLEMENT[verb](claim)
    settle(harness, settlement)
    record = record_of(harness, "a")
    assert (record.raw, record.error, record.slot) == (settlement.next_raw, settlement.error, "w1")
    assert record.attempt_count == int(verb is not Verb.DEFER)
    if verb is Verb.DEFER:
        return
    [attempt] = record.attempts
    assert (attempt.started_ms, attempt.ended_ms, attempt.slot) == (started_ms, harness.clock.ms, "w1")
    assert (attempt.outcome, attempt.error) == (settlement.outcome, settlement.error)


def test_holder_and_reaper_at_the_same_time_move_the_job_once(harness: Harness, verb: Verb) -> None:
    """The lease has expired and both settle: one of them is fenced."""
    claim = running(harness, "a")
    expire_leases(harness)
    other = harness.another()
    [suspect] = other.suspects()
    settlement = EVERY_SETTLEMENT[verb](claim)
    mine, [theirs] = run_concurrently(
        lambda: settle(harness, settlement), lambda: other.reap("w1", [recovered(c) for c in suspect.claims])
    )
    assert sorted([mine, theirs]) == [SettleResult.DONE, SettleResult.FENCED]
    assert len(places_of(harness, "a")) == 1
    assert drift(harness) == 0


def test_the_same_bytes_claimed_again_can_be_settled_again(harness: Harness, verb: Verb) -> None:
    """The same slot released and claimed it again: the token separates the second claim from a repeat of the first."""
    first = running(harness, "a")
    [second] = harness.broker.settle_and_claim([release(first)], ["w1"]).claims
    assert second.raw == first.raw
    assert settle(harness, EVERY_SETTLEMENT[verb](second)) is SettleResult.DONE
    assert places_of(harness, "a") == [DESTINATION[verb]]


def test_a_late_call_about_an_earlier_claim_of_the_same_bytes_is_fenced(harness: Harness, verb: Verb) -> None:
    """A server executes the requests of a dead connection. Meanwhile the slot has settled that claim and a second one,
    and holds the same job for the third time. The late call must not settle the third claim."""
    first = running(harness, "a")
    [second] = harness.broker.settle_and_claim([release(first)], ["w1"]).claims
    [third] = harness.broker.settle_and_claim([release(second)], ["w1"]).claims
    assert third.raw == first.raw
    before = snapshot(harness, "a")
    assert settle(harness, EVERY_SETTLEMENT[verb](first)) is SettleResult.FENCED
    assert snapshot(harness, "a") == before
    assert settle(harness, EVERY_SETTLEMENT[verb](third)) is SettleResult.DONE


def test_a_job_can_be_settled_by_every_verb_after_a_retry(harness: Harness, verb: Verb) -> None:
    settle(harness, failed(running(harness, "a")))
    harness.advance(1)
    harness.broker.promote()
    claim = claim_one(harness)
    assert settle(harness, EVERY_SETTLEMENT[verb](claim)) is SettleResult.DONE
    assert record_of(harness, "a").attempt_count == 1 + int(verb is not Verb.DEFER)
    assert drift(harness) == 0


def test_a_fenced_settlement_does_not_revive_the_heartbeat_of_its_slot(harness: Harness, verb: Verb) -> None:
    """The lease expired and another slot has the job: only a claim or a renewal makes the slot alive again."""
    claim = running(harness, "a", "w1")
    expire_leases(harness)
    register(harness, "w2")
    assert harness.broker.reap("w1", [recovered(claim)]) == (SettleResult.DONE,)
    assert claim_one(harness, "w2").id == "a"
    register(harness, "w1")
    expire_leases(harness)
    reply = harness.broker.settle_and_claim([EVERY_SETTLEMENT[verb](claim)], ["w1"])
    assert (reply.settled, reply.claims, reply.gone) == ((SettleResult.FENCED,), (), ())
    assert harness.broker.census().heartbeats == 0


def test_the_same_settlement_twice_in_one_call_takes_effect_once(harness: Harness, verb: Verb) -> None:
    settlement = EVERY_SETTLEMENT[verb](running(harness, "a"))
    reply = harness.broker.settle_and_claim([settlement, settlement], [])
    assert reply.settled == (SettleResult.DONE, SettleResult.DONE_ALREADY)
    assert places_of(harness, "a") == [DESTINATION[verb]]
    assert drift(harness) == 0


def test_two_claims_of_one_job_settled_in_one_call_take_effect_once(harness: Harness, verb: Verb) -> None:
    """The slot got its job again after a lost reply, so two claims are about the same bytes."""
    first = running(harness, "a")
    [second] = harness.broker.settle_and_claim([], ["w1"]).claims
    assert (second.raw, second.token > first.token) == (first.raw, True)
    make = EVERY_SETTLEMENT[verb]
    reply = harness.broker.settle_and_claim([make(first), make(second)], [])
    assert reply.settled == (SettleResult.DONE, SettleResult.FENCED)
    assert places_of(harness, "a") == [DESTINATION[verb]]
    assert drift(harness) == 0
