"""retry: a failed attempt waits out its backoff and goes back to the queue it came from."""

import msgspec

from fileq.brokers.types import ATTEMPTS_KEPT
from fileq.core.job import State, decode, encode
from fileq.core.settlement import SettleResult, complete, retry
from fileq.testing.conformance.builders import (
    ERROR,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    failed,
    foreign,
    has_record,
    ids_in,
    job_of,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness


def promoted(harness: Harness, seconds: float = 1.0) -> None:
    harness.advance(seconds)
    harness.broker.promote()


def test_a_failed_job_waits_in_scheduled(harness: Harness) -> None:
    settlement = failed(running(harness, "a"), delay_ms=2500)
    settle(harness, settlement)
    assert raws_in(harness, "scheduled") == [settlement.next_raw]
    assert decode(settlement.next_raw).retries == 1
    record = record_of(harness, "a")
    assert (record.state, record.due_ms, record.error) == (State.RETRYING, harness.clock.ms + 2500, ERROR)
    assert (record.raw, record.ended_ms) == (settlement.next_raw, 0)


def test_a_failed_attempt_is_counted(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), kind="ValueError"))
    assert (counter(harness, "failed"), counter(harness, "retried")) == (1, 1)
    assert counter(harness, "error:ValueError") == 1
    assert (counter(harness, "dead"), counter(harness, "recovered"), counter(harness, "released")) == (0, 0, 0)


def test_a_death_counts_as_a_recovery_and_not_as_a_failure(harness: Harness) -> None:
    claim = running(harness, "a")
    again = encode(job_of(claim).but(recoveries=1))
    settle(harness, retry(claim, again, delay_ms=1000, error="killed by signal 9", died=True))
    assert (counter(harness, "recovered"), counter(harness, "failed"), counter(harness, "retried")) == (1, 0, 0)
    assert record_of(harness, "a").attempts[0].outcome == "died"
    assert places_of(harness, "a") == ["scheduled"]


def test_it_goes_back_to_the_queue_it_came_from(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a", queue="high")))
    settle(harness, failed(running(harness, "b", queue="low")))
    promoted(harness)
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["a"], ["b"])


def test_it_goes_to_the_back_of_its_queue(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a")))
    enqueue(harness, "b")
    promoted(harness)
    assert ids_in(harness, "low") == ["b", "a"]


def test_without_a_delay_it_is_due_immediately(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=0))
    assert places_of(harness, "a") == ["scheduled"]
    assert harness.broker.promote().count == 1
    assert places_of(harness, "a") == ["low"]


def test_the_next_attempt_gets_the_bytes_of_the_last_settlement(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a")))
    promoted(harness)
    claim = claim_one(harness)
    assert job_of(claim).retries == 1
    assert record_of(harness, "a").state is State.RUNNING
    settle(harness, complete(claim))
    assert [attempt.outcome for attempt in record_of(harness, "a").attempts] == ["failed", "completed"]
    assert drift(harness) == 0


def test_a_completed_record_no_longer_shows_the_error_of_an_earlier_attempt(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a")))
    promoted(harness)
    settle(harness, complete(claim_one(harness)))
    record = record_of(harness, "a")
    assert record.error == ""
    assert record.attempts[0].error == ERROR


def test_the_history_keeps_the_newest_attempts_and_counts_them_all(harness: Harness) -> None:
    enqueue(harness, "a")
    for i in range(ATTEMPTS_KEPT + 5):
        settle(harness, failed(claim_one(harness), error=f"failure {i}", delay_ms=0))
        harness.broker.promote()
    record = record_of(harness, "a")
    assert record.attempt_count == ATTEMPTS_KEPT + 5
    assert [attempt.error for attempt in record.attempts] == [f"failure {i}" for i in range(5, ATTEMPTS_KEPT + 5)]


def test_an_error_is_text_and_nothing_in_it_is_special(harness: Harness) -> None:
    error = 'ValueError: "quotes" \\ back\nnew\tline ünïcode 日本 \x00 {"json": [1,2]} %s'
    settle(harness, failed(running(harness, "a"), error=error))
    record = record_of(harness, "a")
    assert (record.error, record.attempts[0].error) == (error, error)


def test_unknown_fields_survive_a_retry(harness: Harness) -> None:
    unknown = {"x_big": 12345678901234567890123, "x_empty": [], "x_map": {}, "x_text": "ü\u0000"}
    harness.push_raw("low", foreign("a", **unknown))
    settle(harness, failed(claim_one(harness)))
    promoted(harness)
    claim = claim_one(harness)
    assert job_of(claim).retries == 1
    found = job_of(claim).unknown
    assert found is not msgspec.UNSET
    assert {name: bytes(value) for name, value in found.items()} == {
        "x_big": b"12345678901234567890123",
        "x_empty": b"[]",
        "x_map": b"{}",
        "x_text": b'"\\u00fc\\u0000"',
    }


def test_identical_bytes_that_are_both_retried_both_survive(harness: Harness) -> None:
    """A schedule may be a set of jobs: the second copy must not replace the first."""
    harness.push_raw("low", foreign("a"))
    harness.push_raw("low", foreign("a"))
    claims = claims_of(harness, "w1", "w2")
    assert [settle(harness, failed(claim)) for claim in claims] == [SettleResult.DONE] * 2
    assert places_of(harness, "a") == ["scheduled", "scheduled"]
    assert drift(harness) == 0
    promoted(harness)
    claims = claims_of(harness, "w1", "w2")
    assert [job_of(claim).retries for claim in claims] == [1, 1]
    for claim in claims:
        settle(harness, complete(claim))
    assert counter(harness, "completed") == 2
    assert drift(harness) == 0


def test_identical_bytes_retried_in_one_call_both_survive(harness: Harness) -> None:
    for _ in range(3):
        harness.push_raw("low", foreign("a"))
    claims = claims_of(harness, "w1", "w2", "w3")
    assert set(harness.broker.settle_and_claim([failed(claim) for claim in claims], []).settled) == {SettleResult.DONE}
    assert places_of(harness, "a") == ["scheduled"] * 3
    promoted(harness)
    assert places_of(harness, "a") == ["low"] * 3
    assert drift(harness) == 0


def test_a_retrying_record_does_not_expire(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=10**9))
    harness.advance(10 * harness.config.worker.history_ttl)
    assert has_record(harness, "a")


def test_a_retrying_record_does_not_expire_though_a_copy_has_completed(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.push_raw("low", record_of(harness, "a").raw)
    first, second = claims_of(harness, "w1", "w2")
    settle(harness, complete(first))
    settle(harness, failed(second, delay_ms=10**9))
    harness.advance(10 * harness.config.worker.history_ttl)
    assert has_record(harness, "a")
