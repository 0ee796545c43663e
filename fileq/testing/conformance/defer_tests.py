"""defer: a job that cannot run yet waits with the same bytes; no attempt is counted and its error stays."""

from fileq.core.job import State, encode
from fileq.core.settlement import SettleResult, complete, defer
from fileq.testing.conformance.builders import (
    ERROR,
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    deferred,
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

REASON = "the breaker of route **/*.pdf is open"


def run_again(harness: Harness) -> None:
    harness.advance(1)
    harness.broker.promote()


def test_a_deferred_job_waits_with_the_same_bytes(harness: Harness) -> None:
    claim = running(harness, "a")
    assert settle(harness, defer(claim, reason=REASON, delay_ms=2500)) is SettleResult.DONE
    assert raws_in(harness, "scheduled") == [claim.raw]
    record = record_of(harness, "a")
    assert (record.state, record.due_ms, record.raw) == (State.DEFERRED, harness.clock.ms + 2500, claim.raw)
    assert (record.deferred, record.deferred_count) == (REASON, 1)
    assert (record.queue, record.slot, record.ended_ms) == ("low", "w1", 0)


def test_nothing_is_counted(harness: Harness) -> None:
    claim = running(harness, "a")
    before = harness.broker.census().counters
    settle(harness, deferred(claim))
    after = harness.broker.census().counters
    assert {name: n for name, n in after.items() if n} == {name: n for name, n in before.items() if n}
    record = record_of(harness, "a")
    assert (record.attempts, record.attempt_count) == ((), 0)
    assert drift(harness) == 0


def test_the_error_and_the_attempts_of_an_earlier_failure_stay(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a")))
    run_again(harness)
    settle(harness, deferred(claim_one(harness)))
    record = record_of(harness, "a")
    assert (record.state, record.error, record.attempt_count, record.deferred_count) == (State.DEFERRED, ERROR, 1, 1)
    assert [attempt.outcome for attempt in record.attempts] == ["failed"]


def test_a_failure_ends_the_deferral_and_keeps_its_count(harness: Harness) -> None:
    """A job that failed is retrying, one that could not run is deferred."""
    settle(harness, deferred(running(harness, "a")))
    assert record_of(harness, "a").state is State.DEFERRED
    run_again(harness)
    assert record_of(harness, "a").state is State.PENDING
    settle(harness, failed(claim_one(harness)))
    record = record_of(harness, "a")
    assert (record.state, record.deferred, record.deferred_count) == (State.RETRYING, "", 1)


def test_every_other_end_ends_the_deferral_too(harness: Harness) -> None:
    for id, end in (("a", complete), ("b", burial)):
        settle(harness, deferred(running(harness, id)))
        run_again(harness)
        settle(harness, end(claim_one(harness)))
        assert (record_of(harness, id).deferred, record_of(harness, id).deferred_count) == ("", 1)
    settle(harness, deferred(running(harness, "c")))
    harness.broker.cancel(["c"])
    assert (record_of(harness, "c").state, record_of(harness, "c").deferred) == (State.CANCELLED, "")


def test_the_last_reason_is_kept_and_every_deferral_counted(harness: Harness) -> None:
    enqueue(harness, "a")
    first_ms = harness.clock.ms
    for i in range(3):
        last_ms = harness.clock.ms
        settle(harness, deferred(claim_one(harness), reason=f"reason {i}", delay_ms=0))
        run_again(harness)
    record = record_of(harness, "a")
    assert (record.deferred, record.deferred_count) == ("reason 2", 3)
    assert record.deferrals_ms == (first_ms, last_ms)
    [outline] = harness.broker.outlines(["a"])
    assert outline is not None
    assert outline.deferrals_ms == (0, 0), "an outline is short"
    settle(harness, complete(claim_one(harness)))
    assert record_of(harness, "a").deferrals_ms == record.deferrals_ms, "they stay"


def test_the_next_attempt_keeps_the_reason_and_a_burial_is_the_attempt_that_the_job_died_of(harness: Harness) -> None:
    reason = 'the root "/in/é\n" is missing'
    settle(harness, deferred(running(harness, "a"), reason=reason))
    run_again(harness)
    settle(harness, failed(claim_one(harness)))
    run_again(harness)
    settle(harness, burial(claim_one(harness)))
    attempts = [(one.deferred, one.is_fatal) for one in record_of(harness, "a").attempts]
    assert attempts == [(reason, False), ("", True)]
    settle(harness, deferred(running(harness, "b"), reason=reason))
    run_again(harness)
    settle(harness, complete(claim_one(harness)))
    assert [(one.deferred, one.is_fatal) for one in record_of(harness, "b").attempts] == [(reason, False)]


def test_it_rejoins_the_end_of_the_queue_it_came_from(harness: Harness) -> None:
    settle(harness, deferred(running(harness, "a", queue="high")))
    enqueue(harness, "b", queue="high")
    run_again(harness)
    assert ids_in(harness, "high") == ["b", "a"]
    assert job_of(claim_one(harness)).id == "b"


def test_the_next_attempt_is_the_first_one(harness: Harness) -> None:
    settle(harness, deferred(running(harness, "a")))
    run_again(harness)
    claim = claim_one(harness)
    assert (claim.raw, job_of(claim).retries) == (encode(a_job("a")), 0)
    settle(harness, complete(claim))
    assert record_of(harness, "a").attempt_count == 1
    assert drift(harness) == 0


def test_a_reason_is_text_and_nothing_in_it_is_special(harness: Harness) -> None:
    reason = 'the root "/dätä" \\ is\nmissing \x00 %s'
    settle(harness, deferred(running(harness, "a"), reason=reason))
    assert record_of(harness, "a").deferred == reason


def test_identical_bytes_deferred_in_one_call_all_survive(harness: Harness) -> None:
    for _ in range(3):
        harness.push_raw("low", foreign("a"))
    claims = claims_of(harness, "w1", "w2", "w3")
    settled = harness.broker.settle_and_claim([deferred(claim) for claim in claims], []).settled
    assert set(settled) == {SettleResult.DONE}
    assert places_of(harness, "a") == ["scheduled"] * 3
    assert record_of(harness, "a").deferred_count == 3
    run_again(harness)
    assert places_of(harness, "a") == ["low"] * 3
    assert drift(harness) == 0


def test_a_deferred_job_of_another_program_is_counted_once(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    settle(harness, deferred(claim_one(harness)))
    run_again(harness)
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "adopted"), drift(harness)) == (1, 0)


def test_a_deferred_record_does_not_expire(harness: Harness) -> None:
    settle(harness, deferred(running(harness, "a"), delay_ms=10**9))
    harness.advance(10 * harness.config.worker.history_ttl)
    assert has_record(harness, "a")
