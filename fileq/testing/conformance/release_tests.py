"""release: back to the front of its queue, nothing counted against the job."""

from fileq.core.job import State, encode
from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import (
    UNDECODABLE,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    foreign,
    ids_in,
    job_of,
    places_of,
    raws_in,
    record_of,
    recovered,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness


def test_a_released_job_goes_to_the_front(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    settle(harness, release(claim_one(harness)))
    assert ids_in(harness, "low") == ["a", "b", "c"]
    assert claim_one(harness).id == "a"


def test_it_goes_to_the_front_of_the_queue_it_came_from(harness: Harness) -> None:
    enqueue(harness, "a", "b", queue="high")
    enqueue(harness, "c", queue="low")
    settle(harness, release(claim_one(harness)))
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["a", "b"], ["c"])


def test_released_together_they_keep_their_order_from_last_to_first(harness: Harness) -> None:
    """Each job goes to the front, so a batch is released in reverse order."""
    enqueue(harness, "a", "b", "c", "d")
    claims = claims_of(harness, "w1", "w2", "w3")
    harness.broker.settle_and_claim([release(claim) for claim in reversed(claims)], [])
    assert ids_in(harness, "low") == ["a", "b", "c", "d"]


def test_the_bytes_stay_the_same(harness: Harness) -> None:
    claim = running(harness, "a")
    settle(harness, release(claim))
    assert raws_in(harness, "low") == [claim.raw]


def test_nothing_is_counted_but_the_release(harness: Harness) -> None:
    settle(harness, release(running(harness, "a")))
    assert counter(harness, "released") == 1
    assert [counter(harness, name) for name in ("failed", "retried", "recovered", "dead", "completed")] == [0] * 5
    assert drift(harness) == 0


def test_the_record_is_pending_and_lists_the_attempt(harness: Harness) -> None:
    settle(harness, release(running(harness, "a")))
    record = record_of(harness, "a")
    assert (record.state, record.queue, record.error) == (State.PENDING, "low", "")
    assert [attempt.outcome for attempt in record.attempts] == ["released"]


def test_the_kind_of_a_death_is_counted_once(harness: Harness) -> None:
    died = release(running(harness, "a"), error="killed by signal SIGSEGV", kind="Crash", died=True)
    settle(harness, died)
    settle(harness, died)  # a repeat
    counted = [counter(harness, name) for name in ("error:Crash", "recovered", "released", "failed")]
    assert counted == [1, 1, 0, 0]


def test_a_death_counts_as_a_recovery(harness: Harness) -> None:
    claim = running(harness, "a")
    settle(harness, recovered(claim))
    assert (counter(harness, "recovered"), counter(harness, "released"), counter(harness, "failed")) == (1, 0, 0)
    record = record_of(harness, "a")
    assert (record.error, record.attempts[0].outcome) == ("worker died", "died")
    assert raws_in(harness, "low") == [encode(job_of(claim).but(recoveries=1))]
    assert job_of(claim_one(harness)).recoveries == 1


def test_a_released_job_completes_later(harness: Harness) -> None:
    settle(harness, release(running(harness, "a")))
    assert settle(harness, complete(claim_one(harness))) is SettleResult.DONE
    assert record_of(harness, "a").attempt_count == 2
    assert drift(harness) == 0


def test_bytes_that_are_not_a_job_can_be_released(harness: Harness) -> None:
    raw = UNDECODABLE["text"]
    harness.push_raw("low", raw)
    settle(harness, release(claim_one(harness)))
    assert raws_in(harness, "low") == [raw]
    assert drift(harness) == -1  # not accounted for until a slot claims it again
    assert claim_one(harness).raw == raw
    assert drift(harness) == 0


def test_a_copy_goes_back_to_the_queue_it_came_from(harness: Harness) -> None:
    """Two jobs of one id, each from its own queue; the record knows only one of the queues."""
    harness.push_raw("high", foreign("a"))
    harness.push_raw("low", foreign("a", x_copy=2))
    from_high, from_low = claims_of(harness, "w1", "w2")
    assert (from_high.queue, from_low.queue) == ("high", "low")
    settle(harness, release(from_high))
    settle(harness, release(from_low))
    assert raws_in(harness, "high") == [from_high.raw]
    assert raws_in(harness, "low") == [from_low.raw]
    assert sorted(places_of(harness, "a")) == ["high", "low"]
    assert drift(harness) == 0


def test_settling_and_a_claim_in_vain_in_one_call_are_a_heartbeat(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.pause("low")
    ttl_s = harness.config.worker.heartbeat_ttl
    harness.advance(ttl_s - 1)
    assert harness.broker.settle_and_claim([release(claim)], ["w1"]).claims == ()
    harness.advance(ttl_s - 1)
    assert harness.broker.suspects() == []
