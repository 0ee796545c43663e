"""claim: a free slot gets the next job, its heartbeat and its record in one step."""

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import TurnReply
from fileq.core.job import State, encode
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    a_job,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    ids_in,
    names,
    places_of,
    raw_held_by,
    reap_all,
    record_of,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness

THREE_QUEUES = {
    "worker.priorities": ["high", "mid", "low"],
    "worker.starvation_share": 0.25,
}


def queues_of_next(harness: Harness, count: int) -> list[str]:
    """The queues of the next jobs, claimed and completed one by one."""
    queues = []
    for _ in range(count):
        claim = claim_one(harness)
        queues.append(claim.queue)
        settle(harness, complete(claim))
    return queues


def test_a_call_without_settlements_and_slots_returns_an_empty_reply(harness: Harness) -> None:
    enqueue(harness, "a")
    before = snapshot(harness, "a")
    assert harness.broker.settle_and_claim([], []) == TurnReply()
    assert snapshot(harness, "a") == before


def test_an_empty_broker_gives_nothing(harness: Harness) -> None:
    register(harness, "w1")
    assert harness.broker.settle_and_claim([], ["w1"]) == TurnReply()
    assert counter(harness, "consumed") == 0


def test_a_claim_moves_the_job_into_the_processing_list_of_its_slot(harness: Harness) -> None:
    enqueue(harness, "a")
    claim = claim_one(harness, "w1")
    assert (claim.slot, claim.queue, claim.raw, claim.job) == ("w1", "low", encode(a_job("a")), a_job("a"))
    assert (claim.id, claim.record_id, claim.claimed_ms, claim.defect) == ("a", "a", harness.clock.ms, "")
    assert places_of(harness, "a") == ["processing:w1"]
    assert raw_held_by(harness, "w1") == claim.raw
    assert drift(harness) == 0


def test_a_claim_writes_the_record(harness: Harness) -> None:
    enqueue(harness, "a")
    created_ms = harness.clock.ms
    harness.advance(2)
    claim_one(harness, "w1")
    record = record_of(harness, "a")
    assert (record.state, record.slot, record.queue) == (State.RUNNING, "w1", "low")
    assert (record.created_ms, record.started_ms, record.ended_ms) == (created_ms, harness.clock.ms, 0)
    assert record.attempt_count == 0
    assert counter(harness, "consumed") == 1


def test_a_claim_is_a_heartbeat(harness: Harness) -> None:
    enqueue(harness, "a")
    register(harness, "w1")
    harness.advance(20)
    claim_one(harness, "w1")
    harness.advance(20)
    assert harness.broker.suspects() == []
    harness.advance(10)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]


def test_a_claim_that_finds_no_job_changes_nothing(harness: Harness) -> None:
    """Not even the heartbeat: only renew prolongs it, and an idle call must not write."""
    register(harness, "w1")
    harness.advance(20)
    assert harness.broker.settle_and_claim([], ["w1"]).claims == ()
    harness.advance(10)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]
    assert harness.broker.settle_and_claim([], ["w1"]).claims == ()
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]


def test_first_in_first_out(harness: Harness) -> None:
    ids = names(20)
    enqueue(harness, *ids)
    claims = claims_of(harness, *names(12, "slot"))
    assert [claim.id for claim in claims] == ids[:12]
    assert [claim.slot for claim in claims] == names(12, "slot")
    assert ids_in(harness, "low") == ids[12:]


def test_a_thousand_slots_in_one_call(harness: Harness) -> None:
    ids, slots = names(1000), names(1000, "slot")
    enqueue(harness, *ids)
    claims = claims_of(harness, *slots)
    assert [(claim.slot, claim.id) for claim in claims] == list(zip(slots, ids, strict=True))
    assert harness.broker.census().running == 1000
    answer = harness.broker.settle_and_claim([complete(claim) for claim in claims], slots)
    assert answer == TurnReply(settled=(SettleResult.DONE,) * 1000)
    assert counter(harness, "completed") == 1000
    assert drift(harness) == 0


def test_more_slots_than_jobs_leaves_the_rest_idle(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    assert [claim.id for claim in claims_of(harness, "w1", "w2", "w3")] == ["a", "b"]


def test_a_slot_that_is_not_registered_gets_nothing_and_is_named(harness: Harness) -> None:
    enqueue(harness, "a")
    register(harness, "w2")
    answer = harness.broker.settle_and_claim([], ["w1", "w2", "w3"])
    assert answer.gone == ("w1", "w3")
    assert [claim.slot for claim in answer.claims] == ["w2"]


def test_a_claim_that_arrives_after_its_slot_was_deregistered_gives_nothing(harness: Harness) -> None:
    """A server executes the requests of a dead connection; such a claim would be lost for ever."""
    enqueue(harness, "a")
    register(harness, "w1")
    harness.broker.deregister(["w1"])
    before = snapshot(harness, "a")
    assert harness.broker.settle_and_claim([], ["w1"]) == TurnReply(gone=("w1",))
    assert snapshot(harness, "a") == before
    assert places_of(harness, "a") == ["low"]


def test_a_claim_that_arrives_after_its_slot_was_reaped_gives_nothing(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    reap_all(harness)
    assert harness.broker.settle_and_claim([], ["w1"]) == TurnReply(gone=("w1",))
    assert places_of(harness, "a") == ["low"]


def test_a_slot_that_holds_a_job_is_given_that_one_again(harness: Harness) -> None:
    """The reply to its claim was lost."""
    enqueue(harness, "a", "b")
    first = claim_one(harness)
    before = snapshot(harness, "a", "b")
    second = claim_one(harness)
    assert (second.id, second.raw, second.queue, second.claimed_ms) == ("a", first.raw, "low", first.claimed_ms)
    assert snapshot(harness, "a", "b") == before
    assert settle(harness, complete(second)) is SettleResult.DONE
    assert record_of(harness, "a").attempt_count == 1
    assert drift(harness) == 0


def test_a_slot_whose_lease_ran_out_is_given_its_job_again_until_it_is_reaped(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    assert claim_one(harness).id == "a"


def test_settling_and_claiming_happen_in_one_call(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    claim = claim_one(harness)
    answer = harness.broker.settle_and_claim([complete(claim)], ["w1"])
    assert answer.settled == (SettleResult.DONE,)
    assert [claim.id for claim in answer.claims] == ["b"]
    assert places_of(harness, "a") == ["completed"]


def test_a_call_repeated_after_a_lost_reply_settles_once_and_gives_the_same_job(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    claim = claim_one(harness)
    harness.broker.settle_and_claim([complete(claim)], ["w1"])
    before = snapshot(harness, "a", "b", "c")
    answer = harness.broker.settle_and_claim([complete(claim)], ["w1"])
    assert answer.settled == (SettleResult.DONE_ALREADY,)
    assert [claim.id for claim in answer.claims] == ["b"]
    assert snapshot(harness, "a", "b", "c") == before


def test_each_claim_of_a_slot_has_its_own_token(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first = claim_one(harness)
    [second] = harness.broker.settle_and_claim([complete(first)], ["w1"]).claims
    assert first.token != second.token


def test_a_more_urgent_queue_goes_first(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0})
    enqueue(harness, *names(30, "l"), queue="low")
    enqueue(harness, *names(30, "h"), queue="high")
    assert queues_of_next(harness, 60) == ["high"] * 30 + ["low"] * 30


def test_an_urgent_job_overtakes_those_that_wait(harness: Harness) -> None:
    enqueue(harness, "a", "b", queue="low")
    assert claim_one(harness, "w1").id == "a"
    enqueue(harness, "c", queue="high")
    assert claim_one(harness, "w2").id == "c"


def test_the_starvation_share_of_claims_starts_from_the_lower_queue(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0.25})
    enqueue(harness, *names(20, "l"), queue="low")
    enqueue(harness, *names(20, "h"), queue="high")
    assert queues_of_next(harness, 12) == ["high", "high", "high", "low"] * 3


def test_the_share_holds_within_one_call_for_many_slots(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0.25})
    enqueue(harness, *names(20, "l"), queue="low")
    enqueue(harness, *names(20, "h"), queue="high")
    queues = [claim.queue for claim in claims_of(harness, *names(10, "slot"))]
    assert queues == ["high", "high", "high", "low", "high", "high", "high", "low", "high", "high"]
    assert claim_one(harness, "w11").queue == "high"
    assert claim_one(harness, "w12").queue == "low"


def test_the_default_share_is_one_in_twenty(harness: Harness) -> None:
    enqueue(harness, *names(50, "l"), queue="low")
    enqueue(harness, *names(50, "h"), queue="high")
    queues = [claim.queue for claim in claims_of(harness, *names(40, "slot"))]
    assert [i for i, queue in enumerate(queues, 1) if queue == "low"] == [20, 40]


def test_several_lower_queues_share_the_starvation_share_in_order(make_harness: MakeHarness) -> None:
    harness = make_harness(**THREE_QUEUES)
    for queue in ("low", "mid", "high"):
        enqueue(harness, *names(20, queue), queue=queue)
    assert queues_of_next(harness, 16) == [
        *("high", "high", "high", "mid"),
        *("high", "high", "high", "low"),
        *("high", "high", "high", "mid"),
        *("high", "high", "high", "low"),
    ]


def test_the_share_of_an_empty_lower_queue_goes_to_the_other_queues_in_order(make_harness: MakeHarness) -> None:
    harness = make_harness(**THREE_QUEUES)
    enqueue(harness, *names(20, "low"), queue="low")
    enqueue(harness, *names(20, "high"), queue="high")
    assert queues_of_next(harness, 8) == ["high", "high", "high", "high", "high", "high", "high", "low"]


def test_the_lower_queues_are_in_order_when_the_first_is_empty(make_harness: MakeHarness) -> None:
    harness = make_harness(**{**THREE_QUEUES, "worker.starvation_share": 0})
    enqueue(harness, "l1", queue="low")
    enqueue(harness, "m1", queue="mid")
    assert queues_of_next(harness, 2) == ["mid", "low"]


def test_calls_that_find_nothing_do_not_count_towards_the_share(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0.25})
    register(harness, "w1")
    for _ in range(5):
        assert harness.broker.settle_and_claim([], ["w1"]).claims == ()
    enqueue(harness, *names(5, "l"), queue="low")
    enqueue(harness, *names(5, "h"), queue="high")
    assert queues_of_next(harness, 4) == ["high", "high", "high", "low"]


def test_jobs_given_again_do_not_count_towards_the_share(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0.25})
    enqueue(harness, *names(5, "l"), queue="low")
    enqueue(harness, *names(5, "h"), queue="high")
    for _ in range(6):
        held = claim_one(harness)
    settle(harness, complete(held))
    assert queues_of_next(harness, 3) == ["high", "high", "low"]


def test_two_concurrent_claimers_never_get_the_same_job(harness: Harness) -> None:
    ids = names(200)
    enqueue(harness, *ids)
    other = harness.another()

    def work(broker: FullBroker, *slots: str) -> list[str]:
        register(harness, *slots, broker=broker)
        done: list[str] = []
        claims = broker.settle_and_claim([], slots).claims
        while claims:
            done += [claim.id for claim in claims]
            answer = broker.settle_and_claim([complete(claim) for claim in claims], slots)
            assert set(answer.settled) == {SettleResult.DONE}
            claims = answer.claims
        return done

    first, second = run_concurrently(lambda: work(harness.broker, "a1", "a2", "a3"), lambda: work(other, "b1", "b2"))
    assert sorted(first + second) == ids
    assert first == sorted(first)
    assert second == sorted(second)
    assert counter(harness, "completed") == counter(harness, "consumed") == 200
    assert drift(harness) == 0


def test_two_threads_may_share_one_client(harness: Harness) -> None:
    ids = names(100)
    enqueue(harness, *ids)
    register(harness, "w1", "w2")

    def work(slot: str) -> list[str]:
        done: list[str] = []
        while claims := harness.broker.settle_and_claim([], [slot]).claims:
            done.append(claims[0].id)
            assert settle(harness, complete(claims[0])) is SettleResult.DONE
        return done

    first, second = run_concurrently(lambda: work("w1"), lambda: work("w2"))
    assert sorted(first + second) == ids
    assert drift(harness) == 0


def test_a_slot_named_twice_in_one_call_gets_one_job(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    register(harness, "w1")
    claims = harness.broker.settle_and_claim([], ["w1", "w1"]).claims
    assert [claim.id for claim in claims] == ["a", "a"]
    assert (counter(harness, "consumed"), places_of(harness, "b")) == (1, ["low"])
