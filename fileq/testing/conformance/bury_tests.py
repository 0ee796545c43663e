"""bury: no further attempt; the job waits in the dead-letter list for an operator."""

from fileq.core.job import State, decode, encode, rfc3339_ms
from fileq.core.settlement import bury, complete
from fileq.testing.conformance.builders import (
    ERROR,
    burial,
    claim_one,
    counter,
    dead,
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
    subscribed,
)
from fileq.testing.conformance.harness import Harness, MakeHarness


def test_a_buried_job_is_in_the_dead_letter_list_with_the_given_bytes(harness: Harness) -> None:
    settlement = burial(running(harness, "a"), now_ms=harness.clock.ms)
    settle(harness, settlement)
    assert raws_in(harness, "dead_letter") == [settlement.next_raw]
    job = decode(settlement.next_raw)
    assert (job.error, job.failed_at) == (ERROR, rfc3339_ms(harness.clock.ms))
    record = record_of(harness, "a")
    assert (record.state, record.ended_ms, record.error) == (State.DEAD, harness.clock.ms, ERROR)
    assert record.raw == settlement.next_raw


def test_the_record_of_a_buried_job_keeps_its_fingerprint(harness: Harness) -> None:
    settlement = burial(running(harness, "a"))
    settle(harness, settlement)
    assert record_of(harness, "a").fingerprint == settlement.fingerprint != ""
    settle(harness, failed(running(harness, "b")))
    settle(harness, complete(running(harness, "c")))
    assert record_of(harness, "b").fingerprint == record_of(harness, "c").fingerprint == ""


def test_a_burial_is_a_failed_attempt(harness: Harness) -> None:
    settle(harness, burial(running(harness, "a"), kind="OSError"))
    assert (counter(harness, "failed"), counter(harness, "dead"), counter(harness, "error:OSError")) == (1, 1, 1)
    assert (counter(harness, "retried"), counter(harness, "recovered")) == (0, 0)
    assert record_of(harness, "a").attempts[0].outcome == "failed"


def test_a_job_that_killed_its_workers_is_dead_but_did_not_fail(harness: Harness) -> None:
    claim = running(harness, "a")
    raw = encode(job_of(claim).but(recoveries=4, error="killed by signal 11"))
    settle(harness, bury(claim, raw, error="killed by signal 11", died=True))
    assert (counter(harness, "dead"), counter(harness, "recovered"), counter(harness, "failed")) == (1, 1, 0)
    assert record_of(harness, "a").attempts[0].outcome == "died"
    assert drift(harness) == 0


def test_a_job_that_was_never_run_is_dead_but_did_not_fail(harness: Harness) -> None:
    claim = running(harness, "a")
    raw = encode(job_of(claim).but(error="no handler", failed_at=rfc3339_ms(harness.clock.ms)))
    with subscribed(harness) as next_events:
        settle(harness, bury(claim, raw, error="no handler", kind="NoHandler", refused=True))
        [event] = next_events(1)
    assert (event.event, event.error, event.retry_count) == ("job:dead", "no handler", job_of(claim).retries)
    assert raws_in(harness, "dead_letter") == [raw]
    counted = [counter(harness, name) for name in ("dead", "error:NoHandler", "failed", "retried", "recovered")]
    assert counted == [1, 1, 0, 0, 0]
    record = record_of(harness, "a")
    assert (record.state, record.error, record.attempts[0].outcome) == (State.DEAD, "no handler", "refused")
    assert drift(harness) == 0


def test_the_record_lives_as_long_as_the_job_is_dead(harness: Harness) -> None:
    dead(harness, "a")
    harness.advance(100 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state is State.DEAD


def test_the_dead_letter_list_is_never_trimmed(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 2})
    for id in "abcd":
        dead(harness, id)
    assert ids_in(harness, "dead_letter") == ["a", "b", "c", "d"]
    assert all(has_record(harness, id) for id in "abcd")


def test_peek_shows_the_newest_dead_job_first(harness: Harness) -> None:
    first, second, third = (dead(harness, id) for id in "abc")
    assert harness.broker.peek("dead_letter", 2) == [third, second]
    assert raws_in(harness, "dead_letter") == [first, second, third]


def test_a_job_that_dies_after_retries_keeps_its_history(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=0, error="first"))
    harness.broker.promote()
    settle(harness, burial(claim_one(harness), error="second"))
    assert [attempt.error for attempt in record_of(harness, "a").attempts] == ["first", "second"]


def test_a_foreign_job_is_buried_like_our_own(harness: Harness) -> None:
    harness.push_raw("low", foreign("a", x_note="kept"))
    settle(harness, burial(claim_one(harness)))
    [raw] = raws_in(harness, "dead_letter")
    assert decode(raw).error == ERROR
    assert b"x_note" in raw
    assert drift(harness) == 0


def test_copies_of_one_job_can_all_be_dead(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    for slot in ("w1", "w2"):
        settle(harness, burial(claim_one(harness, slot)))
    assert places_of(harness, "a") == ["dead_letter"] * 2
    assert record_of(harness, "a").attempt_count == 2
    assert drift(harness) == 0


def test_a_dead_copy_keeps_the_record_when_another_completes(harness: Harness) -> None:
    """A dead job's record lives as long as it is dead, even if its copies have ended."""
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    first, second = claim_one(harness, "w1"), claim_one(harness, "w2")
    settle(harness, complete(first))
    settle(harness, burial(second))
    harness.advance(2 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state is State.DEAD


def test_a_dead_job_is_not_claimed(harness: Harness) -> None:
    dead(harness, "a")
    enqueue(harness, "b")
    assert claim_one(harness).id == "b"
