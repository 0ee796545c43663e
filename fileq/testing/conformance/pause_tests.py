"""pause and resume: a paused queue keeps its jobs and accepts new ones; no slot claims from it."""

from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import (
    claim_one,
    claims_of,
    drift,
    enqueue,
    failed,
    ids_in,
    places_of,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness, MakeHarness


def test_nothing_is_claimed_from_a_paused_queue(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.broker.pause("low")
    assert claims_of(harness, "w1") == []
    assert places_of(harness, "a") == ["low"]


def test_the_census_names_the_paused_queues(harness: Harness) -> None:
    assert harness.broker.census().paused == frozenset()
    harness.broker.pause("low")
    assert harness.broker.census().paused == {"low"}
    harness.broker.pause("high")
    assert harness.broker.census().paused == {"low", "high"}


def test_the_other_queues_go_on(harness: Harness) -> None:
    enqueue(harness, "a", queue="high")
    enqueue(harness, "b", queue="low")
    harness.broker.pause("high")
    assert claim_one(harness).id == "b"


def test_a_resumed_queue_continues_in_order(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    harness.broker.pause("low")
    enqueue(harness, "c")
    harness.broker.resume("low")
    assert harness.broker.census().paused == frozenset()
    assert [claim.id for claim in claims_of(harness, "w1", "w2", "w3")] == ["a", "b", "c"]


def test_a_running_job_can_be_settled(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.pause("low")
    assert settle(harness, complete(claim)) is SettleResult.DONE


def test_a_released_job_waits_in_its_paused_queue(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.pause("low")
    settle(harness, release(claim))
    assert claims_of(harness, "w1") == []
    assert ids_in(harness, "low") == ["a"]


def test_a_retried_job_waits_in_its_paused_queue(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=10))
    harness.broker.pause("low")
    harness.advance(1)
    harness.broker.promote()
    assert claims_of(harness, "w1") == []
    harness.broker.resume("low")
    assert claim_one(harness).id == "a"
    assert drift(harness) == 0


def test_a_slot_is_given_its_job_again_although_the_queue_is_paused(harness: Harness) -> None:
    running(harness, "a")
    harness.broker.pause("low")
    assert claim_one(harness).id == "a"


def test_pausing_and_resuming_twice_is_the_same_as_once(harness: Harness) -> None:
    for _ in range(2):
        harness.broker.pause("low")
    assert harness.broker.census().paused == {"low"}
    for _ in range(2):
        harness.broker.resume("low")
    assert harness.broker.census().paused == frozenset()


def test_all_clients_see_a_pause_immediately(harness: Harness) -> None:
    enqueue(harness, "a")
    other = harness.another()
    other.pause("low")
    assert claims_of(harness, "w1") == []
    other.resume("low")
    assert claim_one(harness).id == "a"


def test_a_paused_lower_queue_loses_its_share(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.starvation_share": 0.5})
    for queue in ("high", "low"):
        enqueue(harness, *(f"{queue}-{i}" for i in range(4)), queue=queue)
    harness.broker.pause("low")
    assert [claim.queue for claim in claims_of(harness, "w1", "w2", "w3", "w4")] == ["high"] * 4
