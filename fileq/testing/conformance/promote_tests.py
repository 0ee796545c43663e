"""promote: due jobs move to their queues, each once, earliest first."""

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Promoted
from fileq.core.job import State
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    an_entry,
    claim_one,
    counter,
    drift,
    enqueue,
    ids_in,
    names,
    places_of,
    record_of,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def test_nothing_scheduled_promotes_nothing(harness: Harness) -> None:
    enqueue(harness, "a")
    assert harness.broker.promote() == Promoted(0, None, harness.clock.ms)
    assert ids_in(harness, "low") == ["a"]


def test_a_millisecond_before_its_time_a_job_waits(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1000)
    due_ms = harness.clock.ms + 1000
    harness.advance(0.999)
    assert harness.broker.promote() == Promoted(0, due_ms, due_ms - 1)
    assert places_of(harness, "a") == ["scheduled"]
    assert record_of(harness, "a").state is State.SCHEDULED


def test_exactly_at_its_time_a_job_is_promoted(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1000)
    harness.advance(1)
    assert harness.broker.promote() == Promoted(1, None, harness.clock.ms)
    assert places_of(harness, "a") == ["low"]
    record = record_of(harness, "a")
    assert (record.state, record.due_ms) == (State.PENDING, 0)
    assert drift(harness) == 0


def test_each_goes_to_its_own_queue(harness: Harness) -> None:
    enqueue(harness, "a", queue="high", delay_ms=10)
    enqueue(harness, "b", queue="low", delay_ms=10)
    harness.advance(1)
    harness.broker.promote()
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["a"], ["b"])


def test_it_goes_to_the_back(harness: Harness) -> None:
    enqueue(harness, "late", delay_ms=10)
    enqueue(harness, "early")
    harness.advance(1)
    harness.broker.promote()
    assert ids_in(harness, "low") == ["early", "late"]


def test_the_earliest_goes_first(harness: Harness) -> None:
    for id, delay_ms in (("a", 300), ("c", 100), ("d", 400), ("b", 200)):
        enqueue(harness, id, delay_ms=delay_ms)
    assert ids_in(harness, "scheduled") == ["c", "b", "a", "d"]
    harness.advance(0.3)
    promoted = harness.broker.promote()
    assert (promoted.count, promoted.next_due_ms) == (3, harness.clock.ms + 100)
    assert ids_in(harness, "low") == ["c", "b", "a"]


def test_the_limit_takes_the_earliest(harness: Harness) -> None:
    ids = names(5)[::-1]
    for i, id in enumerate(ids):
        enqueue(harness, id, delay_ms=100 + i)
    harness.advance(1)
    first = harness.broker.promote(limit=2)
    assert (first.count, first.next_due_ms) == (2, harness.clock.ms - 1000 + 102)
    assert ids_in(harness, "low") == ids[:2]
    assert harness.broker.promote(limit=2).count == 2
    assert harness.broker.promote(limit=2) == Promoted(1, None, harness.clock.ms)
    assert ids_in(harness, "low") == ids


def test_a_thousand_in_one_call(harness: Harness) -> None:
    harness.broker.enqueue([an_entry(id, delay_ms=i + 1) for i, id in enumerate(names(1000))])
    harness.advance(1)
    assert harness.broker.promote(limit=1000) == Promoted(1000, None, harness.clock.ms)
    assert ids_in(harness, "low") == names(1000)
    assert drift(harness) == 0


def test_the_same_call_twice_promotes_once(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=10)
    harness.advance(1)
    harness.broker.promote()
    before = snapshot(harness, "a")
    assert harness.broker.promote().count == 0
    assert snapshot(harness, "a") == before


def test_two_schedulers_at_the_same_time_promote_each_job_once(harness: Harness) -> None:
    harness.broker.enqueue([an_entry(id, delay_ms=1) for id in names(100)])
    harness.advance(1)
    other = harness.another()

    def promote(broker: FullBroker) -> int:
        return sum(broker.promote(limit=7).count for _ in range(15))

    assert sum(run_concurrently(lambda: promote(harness.broker), lambda: promote(other))) == 100
    assert sorted(ids_in(harness, "low")) == names(100)
    assert drift(harness) == 0


def test_due_jobs_move_to_a_paused_queue(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=10)
    harness.broker.pause("low")
    harness.advance(1)
    assert harness.broker.promote().count == 1
    assert places_of(harness, "a") == ["low"]


def test_a_promoted_job_is_one_that_was_produced(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=10)
    harness.advance(1)
    harness.broker.promote()
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "produced"), counter(harness, "adopted")) == (1, 0)
    assert drift(harness) == 0


def test_a_job_far_in_the_future_is_found_again(harness: Harness) -> None:
    """Milliseconds since the epoch need more than 32 bits, and must come back exactly."""
    due_ms = harness.clock.ms + 50 * 365 * 86_400_000 + 1
    enqueue(harness, "a", at_ms=due_ms)
    assert record_of(harness, "a").due_ms == due_ms
    assert harness.broker.promote().next_due_ms == due_ms
