"""Cancelling batches: a flag that is set in one step; members learn of it when they are claimed or renewed."""

from functools import partial

import pytest

from fileq.brokers.types import CancelResult, Entry, LeaseStatus, Revival
from fileq.core.batch import UNTOUCHED_MS, BatchState, CallbackKind
from fileq.core.job import State, encode
from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.batch_builders import (
    JOB_QUEUE,
    add,
    batch_of,
    callback_jobs,
    counts,
    create,
    end,
    revive,
)
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    enqueue,
    expire_leases,
    failed,
    raw_held_by,
    raws_in,
    recovered,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

THEN, CATCH, FINALLY = CallbackKind.THEN, CallbackKind.CATCH, CallbackKind.FINALLY


def test_a_cancelled_batch_is_sealed_and_its_members_are_cancelled_when_claimed(harness: Harness) -> None:
    create(harness, THEN, CATCH, FINALLY)
    add(harness, "a", "c")
    assert harness.broker.cancel_batch("b")
    assert not harness.broker.cancel_batch("b")
    assert (batch_of(harness).state, batch_of(harness).is_cancelled) == (BatchState.SEALED, True)
    for claim in claims_of(harness, "w1", "w2"):
        assert claim.is_cancelled
        settle(harness, cancel(claim))
    assert counts(harness) == {"total": 2, "cancelled": 2}
    assert callback_jobs(harness) == {"b.finally"}


def test_only_members_of_a_batch_that_is_cancelled_by_then_are_cancelled(harness: Harness) -> None:
    """The caller has read that the batch is cancelled; a dead member that is put back lifts the cancellation."""
    create(harness, id="p")
    create(harness, CATCH, parent="p")
    add(harness, "a", "c", "d")
    enqueue(harness, "other")
    [claim] = claims_of(harness, "w1")
    settle(harness, burial(claim))
    assert batch_of(harness).is_cancelled
    ids = ["a", "c", "b.catch", "other", "unknown"]
    harness.broker.cancel_batch("p")

    def results() -> list[CancelResult]:
        return harness.broker.cancel(ids, in_cancelled_batch=True)

    kept, cancelled, ended = CancelResult.KEPT, CancelResult.CANCELLED, CancelResult.ENDED
    assert results() == [ended, cancelled, kept, kept, CancelResult.UNKNOWN]
    assert revive(harness, "a")
    ids = ["a", "d"]
    assert results() == [kept, kept]
    assert [record.state for record in harness.broker.records(ids) if record] == [State.PENDING] * 2


def test_of_two_callers_one_cancels(harness: Harness) -> None:
    create(harness, FINALLY)
    calls = [partial(harness.another().cancel_batch, "b") for _ in range(2)]
    assert sorted(run_concurrently(*calls)) == [False, True]


def test_running_members_learn_of_it_at_their_next_renewal(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    enqueue(harness, "x")
    claims = claims_of(harness, "w1", "w2")
    held = [(claim.slot, claim.raw) for claim in claims]
    assert [one.status for one in harness.broker.renew(held)] == [LeaseStatus.HELD] * 2
    requests = harness.broker.promote().cancel_requests
    harness.broker.cancel_batch("b")
    assert harness.broker.promote().cancel_requests > requests, "so workers renew soon"
    assert [one.status for one in harness.broker.renew(held)] == [LeaseStatus.CANCEL, LeaseStatus.HELD]
    [unexpected] = harness.broker.renew([("w1", b"")])
    assert unexpected.claim is not None
    assert unexpected.claim.is_cancelled
    settle(harness, cancel(unexpected.claim))
    assert batch_of(harness).state is BatchState.FINISHED


def test_a_claim_whose_reply_was_lost_says_it_too(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    assert not claim_one(harness).is_cancelled
    harness.broker.cancel_batch("b")
    assert claim_one(harness).is_cancelled


def test_a_member_that_a_reaper_gave_back_is_cancelled(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    claim = claim_one(harness)
    harness.broker.cancel_batch("b")
    expire_leases(harness)
    harness.broker.reap("w1", [recovered(claim)])
    assert claim_one(harness, "w2").is_cancelled


def test_the_first_death_cancels_the_rest_unless_failures_are_allowed(harness: Harness) -> None:
    for id, allow in (("b", False), ("lenient", True)):
        create(harness, id=id, allow_failures=allow)
        add(harness, f"{id}.1", f"{id}.2", batch=id)
        end(harness, burial, id=f"{id}.1")
        assert (batch_of(harness, id).is_cancelled, batch_of(harness, id).state) == (not allow, BatchState.OPEN)
        settle(harness, cancel(claim_one(harness)))


def test_a_batch_that_a_death_cancelled_is_sealed_by_cancel(harness: Harness) -> None:
    create(harness, FINALLY)
    add(harness, "a")
    end(harness, burial)
    assert batch_of(harness).state is BatchState.OPEN
    assert harness.broker.cancel_batch("b")
    assert batch_of(harness).state is BatchState.FINISHED
    assert not harness.broker.cancel_batch("b")


def test_a_cancelled_batch_never_fires_then(harness: Harness) -> None:
    """Its creator may have died before it added all jobs."""
    create(harness, THEN, FINALLY)
    add(harness, "a")
    end(harness, complete)
    assert harness.broker.cancel_batch("b")
    assert counts(harness) == {"total": 1, "completed": 1}
    assert callback_jobs(harness) == {"b.finally"}


def test_waiting_members_are_cancelled_by_id(harness: Harness) -> None:
    create(harness, FINALLY)
    add(harness, "a", "c", "d")
    settle(harness, failed(claim_one(harness)))
    claim_one(harness, "w2")
    harness.broker.cancel_batch("b")
    expected = [CancelResult.CANCELLED, CancelResult.REQUESTED, CancelResult.CANCELLED]
    assert harness.broker.cancel(["a", "c", "d"]) == expected
    assert counts(harness) == {"total": 3, "running": 1, "cancelled": 2}


def test_a_finished_batch_is_not_cancelled(harness: Harness) -> None:
    create(harness)
    harness.broker.seal_batch("b")
    assert not harness.broker.cancel_batch("b")
    assert not batch_of(harness).is_cancelled


@pytest.mark.parametrize("is_touched", [False, True])
def test_an_open_batch_that_nothing_was_added_to_is_cancelled(harness: Harness, is_touched: bool) -> None:
    create(harness, FINALLY)
    create(harness, id="sealed")
    add(harness, "x", batch="sealed")
    harness.broker.seal_batch("sealed")
    harness.advance(UNTOUCHED_MS / 1000)
    if is_touched:
        add(harness, "a")
    harness.advance(10)
    since_ms = harness.clock.ms - UNTOUCHED_MS
    assert harness.broker.cancel_batch("b", untouched_since_ms=since_ms) is not is_touched
    assert not harness.broker.cancel_batch("sealed", untouched_since_ms=since_ms)
    assert batch_of(harness).is_cancelled is not is_touched


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_revived_member_of_a_cancelled_batch_runs_and_then_fires(harness: Harness, by_hand: bool) -> None:
    create(harness, THEN, FINALLY, allow_failures=by_hand)
    add(harness, "a")
    end(harness, burial)
    assert (harness.broker.cancel_batch if by_hand else harness.broker.seal_batch)("b")
    assert batch_of(harness).is_cancelled
    assert revive(harness, "a")
    assert not batch_of(harness).is_cancelled
    claim = claim_one(harness, "w9")
    while claim.id != "a":
        settle(harness, complete(claim))
        claim = claim_one(harness, "w9")
    assert not claim.is_cancelled
    assert harness.broker.renew([("w9", raw_held_by(harness, "w9"))])[0].status is LeaseStatus.HELD
    settle(harness, complete(claim))
    assert batch_of(harness).state is BatchState.FINISHED
    assert set(batch_of(harness).fired) == {THEN, FINALLY}


def test_a_revival_leaves_the_members_that_were_cancelled(harness: Harness) -> None:
    create(harness, THEN, FINALLY)
    add(harness, "a", "c")
    end(harness, burial)
    harness.broker.cancel(["c"])
    harness.broker.seal_batch("b")
    assert revive(harness, "a")
    assert counts(harness) == {"total": 2, "waiting": 1, "cancelled": 1}
    end(harness, complete, id="a")
    assert callback_jobs(harness) == {"b.finally"}


def test_a_revival_that_is_refused_leaves_its_batch_cancelled(harness: Harness) -> None:
    create(harness)
    job = a_job("a", batch_id="b", unique_key="key")
    harness.broker.enqueue([Entry(job, JOB_QUEUE, joins=True)])
    end(harness, burial)
    harness.broker.enqueue([Entry(a_job("x", unique_key="key"), JOB_QUEUE)])
    [raw] = raws_in(harness, "dead_letter")
    [revived] = harness.broker.revive([Revival(raw, "a", encode(job), JOB_QUEUE)])
    assert revived.held_by == "x"
    assert batch_of(harness).is_cancelled


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_revival_lifts_the_cancellation_of_the_batches_around(harness: Harness, is_finished: bool) -> None:
    """Otherwise the reconciler would cancel the child again."""
    create(harness, id="outer")
    create(harness, id="parent", parent="outer")
    create(harness, parent="parent")
    add(harness, "a")
    end(harness, burial)
    if not is_finished:
        add(harness, "x", batch="outer")
    harness.broker.cancel_batch("outer")
    batches = [batch_of(harness, id) for id in ("b", "parent", "outer")]
    assert [one.is_cancelled for one in batches] == [True] * 3
    assert [one.state is BatchState.FINISHED for one in batches] == [True, True, is_finished]
    assert revive(harness, "a")
    assert [batch_of(harness, id).is_cancelled for id in ("b", "parent", "outer")] == [False] * 3


def test_jobs_outside_are_never_cancelled_by_a_batch(harness: Harness) -> None:
    create(harness)
    harness.broker.cancel_batch("b")
    enqueue(harness, "x")
    assert not claim_one(harness).is_cancelled
