"""Batches: jobs that are counted together. Creating, adding, sealing, callbacks, events and expiry."""

import json
from functools import partial

import pytest
from msgspec.structs import asdict

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import EnqueueResult
from fileq.core.batch import KEPT_MS, BatchFacts, BatchState, Callback, CallbackKind, facts_of
from fileq.core.errors import BrokerError
from fileq.core.job import decode, encode
from fileq.core.settlement import complete
from fileq.testing.conformance.batch_builders import (
    JOB_QUEUE,
    add,
    batch_of,
    callback_jobs,
    counts,
    create,
    end,
    member,
    unfinished_ids,
)
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    drift,
    enqueue,
    has_record,
    ids_in,
    raws_in,
    record_of,
    settle,
    subscribed,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

THEN, CATCH, FINALLY = CallbackKind.THEN, CallbackKind.CATCH, CallbackKind.FINALLY


# creating and adding


def test_a_batch_is_created_once(harness: Harness) -> None:
    new = NewBatch("b", "the monthly reports", info=b'{"files": 3}', allow_failures=True)
    assert harness.broker.create_batch(new)
    assert not harness.broker.create_batch(NewBatch("b", "another"))
    batch = batch_of(harness, "b")
    assert (batch.name, batch.info, batch.allow_failures, batch.state) == (new.name, new.info, True, BatchState.OPEN)
    assert (batch.created_ms, batch.touched_ms, batch.finished_ms) == (harness.clock.ms, harness.clock.ms, 0)


def test_of_two_creators_one_creates_it(harness: Harness) -> None:
    calls = [partial(harness.another().create_batch, NewBatch("b")) for _ in range(2)]
    assert sorted(run_concurrently(*calls)) == [False, True]


@pytest.mark.parametrize("id", ["", "a b", "a/b", "x" * 101, "a:b"])
def test_a_wrong_name_is_refused(harness: Harness, id: str) -> None:
    with pytest.raises(BrokerError, match="name"):
        harness.broker.create_batch(NewBatch(id))
    create(harness)
    found = harness.broker.batches_by_id([id, "b", id])
    assert [view and view.id for view in found] == [None, "b", None]


def test_wrong_callbacks_are_refused(harness: Harness) -> None:
    for callback in (
        Callback(THEN, encode(a_job("b.finally")), JOB_QUEUE),
        Callback(THEN, encode(a_job("b.then")), "no such queue"),
    ):
        with pytest.raises(BrokerError):
            harness.broker.create_batch(NewBatch("b", callbacks=(callback,)))
    assert harness.broker.batches_by_id(["b"]) == [None]


def test_a_job_that_joins_is_a_member(harness: Harness) -> None:
    create(harness)
    harness.advance(5)
    assert add(harness, "a", "c") == [EnqueueResult.ENQUEUED] * 2
    assert counts(harness) == {"total": 2, "waiting": 2}
    assert record_of(harness, "a").batch == "b"
    assert unfinished_ids(harness) == {"a", "c"}
    assert batch_of(harness).touched_ms == harness.clock.ms


def test_the_field_batch_id_alone_is_a_label(harness: Harness) -> None:
    create(harness)
    harness.broker.enqueue([member("a", joins=False)])
    assert record_of(harness, "a").batch == ""
    assert counts(harness) == {}


def test_a_repeated_call_adds_no_member_twice(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    assert add(harness, "a") == [EnqueueResult.DUPLICATE]
    assert counts(harness) == {"total": 1, "waiting": 1}


@pytest.mark.parametrize("close", ["seal", "cancel", "never created"])
def test_a_batch_that_takes_no_jobs_refuses_them_and_nothing_changes(harness: Harness, close: str) -> None:
    if close != "never created":
        create(harness)
        add(harness, "a")
        closing = harness.broker.seal_batch if close == "seal" else harness.broker.cancel_batch
        assert closing("b")
    assert add(harness, "c") == [EnqueueResult.REFUSED]
    assert not has_record(harness, "c")
    assert drift(harness) == 0


def test_a_refused_job_takes_no_permit_of_the_rate_limit(harness: Harness) -> None:
    assert harness.broker.enqueue([member("a")], limit=1).permits == 0


# sealing, callbacks, events, expiry


def test_sealing_an_empty_batch_fires_then_and_finally_at_once(harness: Harness) -> None:
    create(harness, THEN, CATCH, FINALLY)
    assert harness.broker.seal_batch("b")
    assert not harness.broker.seal_batch("b")
    assert ids_in(harness, JOB_QUEUE) == ["b.then", "b.finally"]
    assert set(batch_of(harness).fired) == {THEN, FINALLY}
    assert (batch_of(harness).sealed_ms, batch_of(harness).finished_ms) == (harness.clock.ms, harness.clock.ms)


def test_an_unknown_batch_is_not_sealed_or_cancelled(harness: Harness) -> None:
    assert (harness.broker.seal_batch("b"), harness.broker.cancel_batch("b")) == (False, False)


def test_of_two_callers_one_seals(harness: Harness) -> None:
    create(harness, FINALLY)
    calls = [partial(harness.another().seal_batch, "b") for _ in range(2)]
    assert sorted(run_concurrently(*calls)) == [False, True]
    assert ids_in(harness, JOB_QUEUE) == ["b.finally"]


def test_catch_fires_at_the_first_death_with_its_id_and_error(harness: Harness) -> None:
    create(harness, CATCH, allow_failures=True)
    add(harness, "a", "c")
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, burial(claim, error='no "page" \\ ü'))
    [raw] = raws_in(harness, JOB_QUEUE)
    assert json.loads(raw)["payload"] == "\0facts", "what the caller gave"
    facts = BatchFacts("b", CATCH, total=2, completed=0, dead=1, cancelled=0, deleted=0)
    assert json.loads(raw)["batch_facts"] == {**asdict(facts), "first_dead": "a", "first_error": 'no "page" \\ ü'}
    assert (batch_of(harness).dead_id, batch_of(harness).dead_error) == ("a", 'no "page" \\ ü')
    assert batch_of(harness).fired == (CATCH,)
    assert not batch_of(harness).is_cancelled


def test_a_callback_has_the_facts_of_the_step_that_fires_it(harness: Harness) -> None:
    create(harness, THEN, CATCH, FINALLY, allow_failures=True)
    add(harness, "a", "c", "d")
    settle(harness, burial(claim_one(harness), error="no"))
    end(harness, complete, "c")
    harness.broker.cancel(["d"])
    harness.broker.seal_batch("b")
    facts = facts_of(decode(record_of(harness, "b.finally").raw))
    assert facts == BatchFacts("b", FINALLY, 3, 1, 1, 1, 0, first_dead="a", first_error="no")


def test_a_cancelled_member_fires_no_catch(harness: Harness) -> None:
    create(harness, CATCH, THEN)
    add(harness, "a")
    harness.broker.cancel(["a"])
    harness.broker.seal_batch("b")
    assert callback_jobs(harness) == set()


def test_a_callback_whose_id_has_a_record_is_left_out(harness: Harness) -> None:
    enqueue(harness, "b.then", queue="high", is_own=True)
    create(harness, THEN)
    harness.broker.seal_batch("b")
    assert ids_in(harness, "high") + ids_in(harness, JOB_QUEUE) == ["b.then"]
    assert drift(harness) == 0


def test_a_callback_is_no_member(harness: Harness) -> None:
    create(harness, THEN)
    harness.broker.seal_batch("b")
    assert record_of(harness, "b.then").batch == ""


def test_the_end_of_a_batch_is_published(harness: Harness) -> None:
    create(harness)
    subscription = harness.broker.subscribe()
    try:
        harness.broker.seal_batch("b")
        expected = b'{"event":"batch:finished","batch_id":"b","total":0,"completed":0,"dead":0,"cancelled":0,'
        assert subscription.get(10.0) == expected + b'"deleted":0,"at":%d}' % harness.clock.ms
    finally:
        subscription.close()


def test_the_events_of_members_stay_as_they_are(harness: Harness) -> None:
    create(harness)
    with subscribed(harness) as next_events:
        add(harness, "a")
        assert [event.job_id for event in next_events(1)] == ["a"]


def test_a_finished_batch_is_kept_for_thirty_days_and_an_unfinished_one_for_ever(harness: Harness) -> None:
    create(harness)
    create(harness, id="open")
    harness.broker.seal_batch("b")
    harness.advance(KEPT_MS / 1000 - 10)
    assert batch_of(harness).state is BatchState.FINISHED
    harness.advance(10)
    assert harness.broker.batches_by_id(["b"]) == [None]
    assert [batch.id for batch in harness.broker.batch_page().batches] == ["open"]
    assert create(harness)


def test_the_pages_go_from_the_newest_batch_to_the_oldest(harness: Harness) -> None:
    for number in range(5):
        create(harness, id=f"b{number}")
        harness.advance(1)
    harness.broker.seal_batch("b3")

    def all_ids(**options: bool) -> list[str]:
        found, cursor = [], ""
        while True:
            page = harness.broker.batch_page(cursor, 2, **options)
            found += [batch.id for batch in page.batches]
            if not (cursor := page.next_cursor):
                return found

    assert all_ids() == ["b4", "b3", "b2", "b1", "b0"]
    assert all_ids(unfinished=True) == ["b4", "b2", "b1", "b0"]
