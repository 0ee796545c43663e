"""enqueue: each job is enqueued once, with its record, and in order."""

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers.types import Enqueued, EnqueueResult, Entry, Record
from fileq.core.errors import BrokerError, JobError
from fileq.core.job import MAX_JOB_BYTES, State, encode
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    CREATED,
    EIGHT_FIELDS,
    a_job,
    an_entry,
    claim_one,
    completed,
    counter,
    dead,
    deferred,
    drift,
    enqueue,
    failed,
    has_record,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def test_enqueueing_nothing_changes_nothing(harness: Harness) -> None:
    before = snapshot(harness)
    assert harness.broker.enqueue([]) == Enqueued(())
    assert snapshot(harness) == before


def test_a_job_that_is_too_long_is_refused_and_none_of_its_batch_is_enqueued(harness: Harness) -> None:
    before = snapshot(harness)
    long = a_job("long").but(payload=Raw(b'"' + b"x" * MAX_JOB_BYTES + b'"'))
    unknown = a_job("unknown").but(unknown={"more": long.payload})
    for job in (long, unknown):
        with pytest.raises(JobError, match=rf"job {job.id} has {MAX_JOB_BYTES + 2} bytes; at most {MAX_JOB_BYTES} "):
            harness.broker.enqueue([an_entry("a"), Entry(job, "low")])
    assert snapshot(harness) == before


def test_a_job_enters_the_queue_it_was_given(harness: Harness) -> None:
    assert enqueue(harness, "a", queue="high").results == (EnqueueResult.ENQUEUED,)
    assert enqueue(harness, "b", queue="low").results == (EnqueueResult.ENQUEUED,)
    assert places_of(harness, "a") == ["high"]
    assert places_of(harness, "b") == ["low"]
    assert drift(harness) == 0


def test_the_answer_says_when_the_records_were_created(harness: Harness) -> None:
    """As well for a single job without anything special, which brokers may enqueue in a shorter way."""
    harness.clock.ms += 1234
    for answer, id in ((enqueue(harness, "a"), "a"), (harness.broker.enqueue([an_entry("b"), an_entry("c")]), "c")):
        assert answer.now_ms == record_of(harness, id).created_ms


def test_the_queue_and_not_the_jobs_priority_decides(harness: Harness) -> None:
    harness.broker.enqueue([Entry(a_job("a", priority="high"), "low")])
    assert places_of(harness, "a") == ["low"]


def test_the_raw_job_is_plain_json_with_the_eight_fields_in_order(harness: Harness) -> None:
    enqueue(harness, "a")
    [raw] = raws_in(harness, "low")
    assert tuple(json.loads(raw)) == EIGHT_FIELDS
    assert raw == encode(a_job("a"))


def test_a_new_job_has_a_record(harness: Harness) -> None:
    enqueue(harness, "a")
    record = record_of(harness, "a")
    assert (record.id, record.state, record.queue) == ("a", State.PENDING, "low")
    assert record.raw == encode(a_job("a"))
    assert record.created_ms == harness.clock.ms
    assert (record.slot, record.started_ms, record.ended_ms, record.due_ms) == ("", 0, 0, 0)
    assert (record.error, record.result, record.attempts, record.attempt_count) == ("", b"", (), 0)
    assert record.is_cancel_requested is False


def test_a_thousand_keep_their_order(harness: Harness) -> None:
    ids = names(1000)
    assert enqueue(harness, *ids).results == (EnqueueResult.ENQUEUED,) * 1000
    assert ids_in(harness, "low") == ids
    assert counter(harness, "produced") == 1000
    assert drift(harness) == 0


def test_batches_keep_their_order(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    enqueue(harness, "c", "d")
    assert ids_in(harness, "low") == ["a", "b", "c", "d"]


def test_the_same_call_twice_has_no_second_effect(harness: Harness) -> None:
    """The reply was lost: the caller repeats the call and learns that the job exists."""
    entries = [an_entry(id) for id in names(3)]
    harness.broker.enqueue(entries)
    before = snapshot(harness, *names(3))
    assert harness.broker.enqueue(entries).results == (EnqueueResult.DUPLICATE,) * 3
    assert snapshot(harness, *names(3)) == before


def test_a_job_alone_is_enqueued_like_a_job_of_a_batch(harness: Harness) -> None:
    """A broker may have a shorter way for it."""
    alone = a_job("a", payload=Raw(b'{"a":1}'), type="resize")
    first, second = alone.but(id="b"), alone.but(id="c")
    answer = harness.broker.enqueue([Entry(alone, "high")])
    harness.broker.enqueue([Entry(first, "high"), Entry(second, "high")])
    ids = ("a", "b", "c")
    records = [record_of(harness, id) for id in ids]
    assert answer == Enqueued((EnqueueResult.ENQUEUED,), existing=("",), now_ms=records[0].created_ms)
    assert {replace(record, id="", raw=b"", created_ms=0) for record in records} == {
        Record("", State.PENDING, b"", "high", queued=1)
    }
    assert [record.raw for record in records] == [encode(job) for job in (alone, first, second)]
    assert [ids_in(harness, "high"), counter(harness, "produced"), drift(harness)] == [list(ids), 3, 0]
    before = snapshot(harness, *ids)
    again = harness.broker.enqueue([Entry(alone, "high")])
    assert again == Enqueued((EnqueueResult.DUPLICATE,), existing=("a",))
    assert snapshot(harness, *ids) == before


def test_an_id_twice_in_one_batch_is_enqueued_once(harness: Harness) -> None:
    answer = harness.broker.enqueue([an_entry("a"), an_entry("a", queue="high"), an_entry("b")])
    assert answer.results == (EnqueueResult.ENQUEUED, EnqueueResult.DUPLICATE, EnqueueResult.ENQUEUED)
    assert places_of(harness, "a") == ["low"]
    assert drift(harness) == 0


@pytest.mark.parametrize("where", State, ids=str)
def test_an_id_is_a_duplicate_as_long_as_it_has_a_record(harness: Harness, where: State) -> None:
    if where == "pending":
        enqueue(harness, "a")
    elif where == "scheduled":
        enqueue(harness, "a", delay_ms=5000)
    elif where == "running":
        running(harness, "a")
    elif where == "retrying":
        settle(harness, failed(running(harness, "a")))
    elif where == "deferred":
        settle(harness, deferred(running(harness, "a")))
    elif where == "completed":
        completed(harness, "a")
    elif where == "dead":
        dead(harness, "a")
    else:
        enqueue(harness, "a")
        harness.broker.cancel(["a"])
    assert record_of(harness, "a").state == where
    before = snapshot(harness, "a")
    assert enqueue(harness, "a").results == (EnqueueResult.DUPLICATE,)
    assert snapshot(harness, "a") == before


def test_an_id_is_free_again_once_its_record_is_gone(harness: Harness) -> None:
    completed(harness, "a")
    harness.advance(harness.config.worker.history_ttl)
    assert not has_record(harness, "a")
    assert enqueue(harness, "a").results == (EnqueueResult.ENQUEUED,)
    assert sorted(places_of(harness, "a")) == ["completed", "low"]
    settle(harness, complete(claim_one(harness)))
    assert drift(harness) == 0


def test_a_delayed_job_is_scheduled(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1500)
    record = record_of(harness, "a")
    assert (record.state, record.due_ms) == (State.SCHEDULED, harness.clock.ms + 1500)
    assert places_of(harness, "a") == ["scheduled"]
    assert raws_in(harness, "scheduled") == [encode(a_job("a"))]
    assert drift(harness) == 0


@pytest.mark.parametrize(("at", "delay_ms"), [(700, 0), (700, 300), (300, 700), (-5000, 700)])
def test_a_job_is_due_at_the_later_of_its_two_times(harness: Harness, at: int, delay_ms: int) -> None:
    enqueue(harness, "a", at_ms=harness.clock.ms + at, delay_ms=delay_ms)
    assert record_of(harness, "a").due_ms == harness.clock.ms + 700


@pytest.mark.parametrize("at", [0, -1, -5000])
def test_a_job_whose_time_has_come_is_pending_immediately(harness: Harness, at: int) -> None:
    enqueue(harness, "a", at_ms=harness.clock.ms + at)
    record = record_of(harness, "a")
    assert (record.state, record.due_ms) == (State.PENDING, 0)
    assert places_of(harness, "a") == ["low"]


def test_a_job_that_is_due_in_a_millisecond_waits(harness: Harness) -> None:
    enqueue(harness, "a", at_ms=harness.clock.ms + 1)
    assert places_of(harness, "a") == ["scheduled"]


def test_optional_and_unknown_fields_are_kept(harness: Harness) -> None:
    job = a_job("a", type="resize", max_retries=0, timeout=2.5, deadline=CREATED, batch_id="b-1")
    harness.broker.enqueue([Entry(job, "low")])
    assert claim_one(harness).job == job


def test_two_producers_of_one_id_enqueue_it_once(harness: Harness) -> None:
    ids = names(50)
    other = harness.another()
    first, second = run_concurrently(
        lambda: [enqueue(harness, id).results[0] for id in ids],
        lambda: [other.enqueue([an_entry(id)]).results[0] for id in ids],
    )
    assert all(
        {one, two} == {EnqueueResult.ENQUEUED, EnqueueResult.DUPLICATE} for one, two in zip(first, second, strict=True)
    )
    assert sorted(ids_in(harness, "low")) == ids
    assert drift(harness) == 0


def test_an_unknown_queue_is_refused_by_name(harness: Harness) -> None:
    with pytest.raises(BrokerError, match="'urgent'; known: high, low"):
        harness.broker.enqueue([an_entry("a"), an_entry("b", queue="urgent")])
    assert raws_in(harness, "low") == []
    assert drift(harness) == 0
