"""complete: the job is done; its record is kept for the history TTL, its list entry until newer ones replace it."""

from fileq.brokers.types import EnqueueResult
from fileq.core.job import State, Version
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    an_entry,
    claim_one,
    claims_of,
    completed,
    counter,
    drift,
    enqueue,
    foreign,
    has_record,
    ids_in,
    ledger_entry,
    names,
    raws_in,
    record_of,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.harness import Harness, MakeHarness


def test_a_completed_job_is_listed_with_the_same_bytes(harness: Harness) -> None:
    claim = running(harness, "a")
    settle(harness, complete(claim))
    assert raws_in(harness, "completed") == [claim.raw]
    assert counter(harness, "completed") == 1


def test_the_record_says_how_the_job_ended(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.advance(2)
    settle(harness, complete(claim, result=b'{"pages": 3}', duration_ms=1900))
    record = record_of(harness, "a")
    assert (record.state, record.ended_ms, record.result) == (State.COMPLETED, harness.clock.ms, b'{"pages": 3}')
    assert (record.error, record.attempts[0].outcome) == ("", "completed")
    assert record.attempts[0].duration_ms == 1900  # as the worker measured it, not from the claim to the settlement


def test_a_result_is_bytes_and_nothing_in_it_is_special(harness: Harness) -> None:
    result = '{"text": "\\u0000 \\" ü 日本 \\n", "empty": [], "big": 123456789012345678901}'.encode()
    settle(harness, complete(running(harness, "a"), result=result))
    assert record_of(harness, "a").result == result


def test_no_result_stays_empty(harness: Harness) -> None:
    settle(harness, complete(running(harness, "a")))
    assert record_of(harness, "a").result == b""


def test_peek_shows_the_newest_first(harness: Harness) -> None:
    completed(harness, "a", "b", "c")
    assert ids_in(harness, "completed") == ["a", "b", "c"]
    assert harness.broker.peek("completed", 2) == raws_in(harness, "completed")[:0:-1]


def test_the_list_is_trimmed_together_with_the_records(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 3})
    completed(harness, *names(5))
    assert ids_in(harness, "completed") == names(5)[2:]
    assert [has_record(harness, id) for id in names(5)] == [False, False, True, True, True]
    assert counter(harness, "completed") == 5
    assert drift(harness) == 0


def test_a_batch_larger_than_the_list_keeps_its_newest(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 3})
    enqueue(harness, *names(10))
    claims = claims_of(harness, *names(10, "slot"))
    harness.broker.settle_and_claim([complete(claim) for claim in claims], [])
    assert ids_in(harness, "completed") == names(10)[7:]
    assert [id for id in names(10) if has_record(harness, id)] == names(10)[7:]
    assert drift(harness) == 0


def test_an_id_whose_record_was_trimmed_is_free_again(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 1})
    completed(harness, "a", "b")
    assert enqueue(harness, "a").results == (EnqueueResult.ENQUEUED,)


def test_the_record_of_a_job_that_runs_again_survives_the_trimming_of_its_old_copy(make_harness: MakeHarness) -> None:
    """The id was used again after its record had expired; the first copy is trimmed while the second runs."""
    harness = make_harness(**{"worker.completed_max": 2})
    completed(harness, "a")
    harness.advance(harness.config.worker.history_ttl)
    running(harness, "a", "w2")
    completed(harness, "b", "c")
    assert ids_in(harness, "completed") == ["b", "c"]
    assert record_of(harness, "a").state is State.RUNNING


def test_the_record_lives_for_the_history_ttl(harness: Harness) -> None:
    completed(harness, "a")
    harness.advance(harness.config.worker.history_ttl - 0.001)
    assert has_record(harness, "a")
    harness.advance(0.001)
    assert not has_record(harness, "a")
    assert ids_in(harness, "completed") == ["a"]
    assert drift(harness) == 0


def test_a_running_record_does_not_expire(harness: Harness) -> None:
    running(harness, "a")
    harness.advance(10 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state is State.RUNNING


def test_a_superseded_job_is_completed_and_counted(harness: Harness) -> None:
    settle(harness, complete(running(harness, "a"), superseded=True))
    assert ids_in(harness, "completed") == ["a"]
    assert record_of(harness, "a").attempts[0].outcome == "superseded"
    assert (counter(harness, "superseded"), counter(harness, "completed")) == (1, 1)


def test_a_job_that_is_not_superseded_is_not_counted_so(harness: Harness) -> None:
    completed(harness, "a")
    assert counter(harness, "superseded") == 0


def test_the_version_that_a_handler_leaves_behind_is_known(harness: Harness) -> None:
    """A handler that works in place changes its file; that is not a new version to process."""
    harness.broker.enqueue([an_entry("a", version=Version(b"/data/a", "v1"))])
    settle(harness, complete(claim_one(harness), leaves=Version(b"/data/a", "v2")))
    entry = ledger_entry(harness, b"/data/a")
    assert entry.versions == (("v2", "a"), ("v1", "a"))
    assert harness.broker.enqueue([an_entry("b", version=Version(b"/data/a", "v2"))]).results == (EnqueueResult.KNOWN,)


def test_an_unchanged_file_does_not_change_the_ledger(harness: Harness) -> None:
    harness.broker.enqueue([an_entry("a", version=Version(b"/data/a", "v1"))])
    settle(harness, complete(claim_one(harness), leaves=Version(b"/data/a", "v1")))
    entry = ledger_entry(harness, b"/data/a")
    assert entry.versions == (("v1", "a"),)


def test_a_fenced_completion_does_not_change_the_ledger(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.deregister(["w1"])
    before = snapshot(harness, "a")
    assert settle(harness, complete(claim, leaves=Version(b"/data/a", "v2"))) is SettleResult.FENCED
    assert harness.broker.lookup([b"/data/a"]) == [None]
    assert snapshot(harness, "a") == before


def test_a_foreign_job_completes_like_our_own(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    settle(harness, complete(claim_one(harness)))
    assert raws_in(harness, "completed") == [foreign("a")]
    assert record_of(harness, "a").state is State.COMPLETED
    assert drift(harness) == 0


def test_the_record_is_kept_while_a_copy_still_waits(harness: Harness) -> None:
    """Another program pushed the job again; a copy that went back to its queue needs the record when it is claimed."""
    first = running(harness, "a", "w1")
    harness.push_raw("low", first.raw)
    claim_one(harness, "w2")
    harness.broker.deregister(["w2"])
    settle(harness, complete(first))
    harness.advance(2 * harness.config.worker.history_ttl)
    assert has_record(harness, "a")
    settle(harness, complete(claim_one(harness, "w3")))
    assert counter(harness, "completed") == 2
    assert drift(harness) == 0


def test_the_record_is_kept_while_a_copy_still_waits_and_the_list_is_full(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 1})
    first = running(harness, "a", "w1")
    harness.push_raw("low", first.raw)
    claim_one(harness, "w2")
    harness.broker.deregister(["w2"])
    settle(harness, complete(first))
    harness.broker.pause("low")
    settle(harness, complete(running(harness, "b", "w3", queue="high")))
    assert ids_in(harness, "completed") == ["b"]
    assert has_record(harness, "a")
    harness.broker.resume("low")
    settle(harness, complete(claim_one(harness, "w4")))
    assert drift(harness) == 0
