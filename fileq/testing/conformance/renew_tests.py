"""renew: prolongs each lease and returns what each slot holds."""

from fileq.brokers.types import LeaseStatus, Renewal
from fileq.core.job import Claim
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    claim_one,
    claims_of,
    enqueue,
    expire_leases,
    foreign,
    names,
    places_of,
    reap_all,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.harness import Harness


def claim_in(renewal: Renewal) -> Claim:
    assert renewal.claim is not None
    return renewal.claim


def test_renewing_no_slot_returns_nothing(harness: Harness) -> None:
    assert harness.broker.renew([]) == []


def test_a_slot_keeps_its_job(harness: Harness) -> None:
    claim = running(harness, "a")
    for _ in range(5):
        harness.advance(20)
        assert harness.broker.renew([("w1", claim.raw)]) == [Renewal("w1", LeaseStatus.HELD)]
        assert harness.broker.suspects() == []
    assert settle(harness, complete(claim)) is SettleResult.DONE


def test_an_idle_slot_stays_alive(harness: Harness) -> None:
    register(harness, "w1")
    for _ in range(3):
        harness.advance(20)
        assert harness.broker.renew([("w1", b"")]) == [Renewal("w1", LeaseStatus.IDLE)]
        assert harness.broker.suspects() == []


def test_a_renewal_lasts_exactly_one_ttl(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.advance(17)
    harness.broker.renew([("w1", claim.raw)])
    harness.advance(29.999)
    assert harness.broker.suspects() == []
    harness.advance(0.001)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]


def test_an_expired_lease_that_was_not_reaped_is_renewed(harness: Harness) -> None:
    claim = running(harness, "a")
    expire_leases(harness)
    assert len(harness.broker.suspects()) == 1
    assert harness.broker.renew([("w1", claim.raw)]) == [Renewal("w1", LeaseStatus.HELD)]
    assert harness.broker.suspects() == []


def test_after_losing_the_lease_it_changes_nothing_and_returns_gone(harness: Harness) -> None:
    claim = running(harness, "a", "w1")
    expire_leases(harness)
    reap_all(harness)
    claim_one(harness, "w2")
    before = snapshot(harness, "a")
    assert harness.broker.renew([("w1", claim.raw)]) == [Renewal("w1", LeaseStatus.GONE)]
    assert snapshot(harness, "a") == before
    assert places_of(harness, "a") == ["processing:w2"]


def test_a_slot_that_was_never_registered_is_gone(harness: Harness) -> None:
    before = snapshot(harness)
    assert harness.broker.renew([("w1", b"")]) == [Renewal("w1", LeaseStatus.GONE)]
    assert snapshot(harness) == before
    assert harness.broker.census().heartbeats == 0


def test_a_job_that_is_no_longer_the_slots_own_is_lost(harness: Harness) -> None:
    claim = running(harness, "a", "w1")
    harness.broker.deregister(["w1"])
    register(harness, "w1")
    assert harness.broker.renew([("w1", claim.raw)]) == [Renewal("w1", LeaseStatus.LOST)]


def test_a_slot_that_holds_another_job_than_it_believes_has_lost_its_job(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first = claim_one(harness)
    harness.broker.settle_and_claim([complete(first)], ["w1"])
    assert harness.broker.renew([("w1", first.raw)]) == [Renewal("w1", LeaseStatus.LOST)]
    assert places_of(harness, "b") == ["processing:w1"]


def test_a_slot_that_believes_to_be_idle_gets_the_job_it_holds(harness: Harness) -> None:
    """The reply to its claim was lost and it did not repeat the call."""
    running(harness, "a")
    harness.advance(5)
    [renewal] = harness.broker.renew([("w1", b"")])
    assert (renewal.slot, renewal.status) == ("w1", LeaseStatus.UNEXPECTED)
    claim = claim_in(renewal)
    assert (claim.slot, claim.queue, claim.id) == ("w1", "low", "a")
    assert claim.claimed_ms == harness.clock.ms - 5000
    assert settle(harness, complete(claim)) is SettleResult.DONE
    assert settle(harness, complete(claim)) is SettleResult.DONE_ALREADY


def test_an_unexpected_foreign_job_is_returned_too(harness: Harness) -> None:
    harness.push_raw("high", foreign("a", x_note=1))
    claim_one(harness)
    [renewal] = harness.broker.renew([("w1", b"")])
    assert (claim_in(renewal).raw, claim_in(renewal).queue) == (foreign("a", x_note=1), "high")


def test_unexpected_bytes_that_are_not_a_job_are_returned_too(harness: Harness) -> None:
    harness.push_raw("low", b"hello")
    claim_one(harness)
    [renewal] = harness.broker.renew([("w1", b"")])
    assert renewal.status is LeaseStatus.UNEXPECTED
    assert (claim_in(renewal).raw, claim_in(renewal).job) == (b"hello", None)


def test_bytes_that_are_not_a_job_are_held(harness: Harness) -> None:
    harness.push_raw("low", b"hello")
    claim_one(harness)
    assert harness.broker.renew([("w1", b"hello")]) == [Renewal("w1", LeaseStatus.HELD)]


def test_only_the_cancelled_job_is_cancelled(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first, second = claims_of(harness, "w1", "w2")
    harness.broker.cancel(["b"])
    assert harness.broker.renew([("w1", first.raw), ("w2", second.raw)]) == [
        Renewal("w1", LeaseStatus.HELD),
        Renewal("w2", LeaseStatus.CANCEL),
    ]


def test_each_slot_has_its_own_result(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first, _ = claims_of(harness, "w1", "w2")
    register(harness, "w3", "w4")
    answers = harness.broker.renew([("w1", first.raw), ("w2", b""), ("w3", b""), ("w4", first.raw), ("w5", b"")])
    assert [answer.slot for answer in answers] == ["w1", "w2", "w3", "w4", "w5"]
    assert [answer.status for answer in answers] == [
        LeaseStatus.HELD,
        LeaseStatus.UNEXPECTED,
        LeaseStatus.IDLE,
        LeaseStatus.LOST,
        LeaseStatus.GONE,
    ]


def test_a_thousand_in_one_call(harness: Harness) -> None:
    slots = names(1000, "slot")
    enqueue(harness, *names(500))
    claims = claims_of(harness, *slots)
    held = {claim.slot: claim.raw for claim in claims}
    harness.advance(20)
    answers = harness.broker.renew([(slot, held.get(slot, b"")) for slot in slots])
    assert [answer.status for answer in answers] == [LeaseStatus.HELD] * 500 + [LeaseStatus.IDLE] * 500
    harness.advance(20)
    assert harness.broker.suspects() == []


def test_renewing_does_not_count_as_an_attempt(harness: Harness) -> None:
    claim = running(harness, "a")
    before = snapshot(harness, "a")
    harness.broker.renew([("w1", claim.raw)])
    assert snapshot(harness, "a") == before
