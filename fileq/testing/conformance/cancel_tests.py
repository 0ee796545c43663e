"""cancel: a waiting job leaves its place; the worker of a running job learns it at its next renewal."""

from functools import partial

import pytest

from fileq.brokers.types import CancelResult, LeaseStatus
from fileq.core.job import State
from fileq.core.settlement import SettleResult, cancel, complete
from fileq.testing.conformance.builders import (
    claim_one,
    claims_of,
    completed,
    counter,
    dead,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    has_record,
    ids_in,
    names,
    places_of,
    raws_in,
    reap_all,
    record_of,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness


def test_cancelling_no_id_returns_nothing(harness: Harness) -> None:
    assert harness.broker.cancel([]) == []


def test_an_unknown_id_is_unknown(harness: Harness) -> None:
    before = snapshot(harness)
    assert harness.broker.cancel(["unknown"]) == [CancelResult.UNKNOWN]
    assert snapshot(harness) == before


@pytest.mark.parametrize("where", ["pending", "scheduled", "retrying", "deferred"])
def test_a_waiting_job_leaves_its_place(harness: Harness, where: str) -> None:
    if where in ("retrying", "deferred"):
        end = failed if where == "retrying" else deferred
        settle(harness, end(running(harness, "a")))
    else:
        enqueue(harness, "a", delay_ms=5000 if where == "scheduled" else 0)
    waiting = record_of(harness, "a")
    assert waiting.state == where
    assert harness.broker.cancel(["a"]) == [CancelResult.CANCELLED]
    assert places_of(harness, "a") == ["cancelled"]
    assert raws_in(harness, "cancelled") == [waiting.raw]
    record = record_of(harness, "a")
    assert (record.state, record.ended_ms, record.error) == (State.CANCELLED, harness.clock.ms, "cancelled")
    assert counter(harness, "cancelled") == 1
    assert drift(harness) == 0


def test_the_others_keep_their_order(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    harness.broker.cancel(["b"])
    assert ids_in(harness, "low") == ["a", "c"]
    assert [claim.id for claim in claims_of(harness, "w1", "w2")] == ["a", "c"]


def test_the_worker_of_a_running_job_learns_it_at_its_next_renewal(harness: Harness) -> None:
    claim = running(harness, "a")
    assert harness.broker.cancel(["a"]) == [CancelResult.REQUESTED]
    assert record_of(harness, "a").is_cancel_requested
    assert places_of(harness, "a") == ["processing:w1"]
    [renewal] = harness.broker.renew([("w1", claim.raw)])
    assert renewal.status is LeaseStatus.CANCEL
    assert settle(harness, cancel(claim)) is SettleResult.DONE
    assert places_of(harness, "a") == ["cancelled"]
    assert record_of(harness, "a").state is State.CANCELLED
    assert drift(harness) == 0


def test_a_running_job_that_completes_before_its_next_renewal_is_completed(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.cancel(["a"])
    assert settle(harness, complete(claim)) is SettleResult.DONE
    assert record_of(harness, "a").state is State.COMPLETED


def test_the_request_to_cancel_outlives_the_worker(harness: Harness) -> None:
    """The worker died before its next renewal; the next worker learns of the request."""
    running(harness, "a", "w1")
    harness.broker.cancel(["a"])
    expire_leases(harness)
    reap_all(harness)
    claim = claim_one(harness, "w2")
    [renewal] = harness.broker.renew([("w2", claim.raw)])
    assert renewal.status is LeaseStatus.CANCEL


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled"])
def test_an_ended_job_is_left_as_it_is(harness: Harness, end: str) -> None:
    if end == "completed":
        completed(harness, "a")
    elif end == "dead":
        dead(harness, "a")
    else:
        enqueue(harness, "a")
        harness.broker.cancel(["a"])
    before = snapshot(harness, "a")
    assert harness.broker.cancel(["a"]) == [CancelResult.ENDED]
    assert snapshot(harness, "a") == before


def test_the_same_call_twice_has_no_second_effect(harness: Harness) -> None:
    enqueue(harness, "a")
    running(harness, "b", "w1", queue="high")
    harness.broker.cancel(["a", "b"])
    before = snapshot(harness, "a", "b")
    assert harness.broker.cancel(["a", "b"]) == [CancelResult.ENDED, CancelResult.REQUESTED_BEFORE]
    assert snapshot(harness, "a", "b") == before


def test_an_id_twice_in_one_call_is_cancelled_once(harness: Harness) -> None:
    enqueue(harness, "a")
    assert harness.broker.cancel(["a", "a"]) == [CancelResult.CANCELLED, CancelResult.ENDED]
    assert places_of(harness, "a") == ["cancelled"]
    assert drift(harness) == 0


def test_each_id_has_its_own_result(harness: Harness) -> None:
    claim = running(harness, "running")
    enqueue(harness, "waiting")
    enqueue(harness, "later", delay_ms=1000)
    assert harness.broker.cancel(["running", "unknown", "waiting", "later"]) == [
        CancelResult.REQUESTED,
        CancelResult.UNKNOWN,
        CancelResult.CANCELLED,
        CancelResult.CANCELLED,
    ]
    assert ids_in(harness, "cancelled") == ["waiting", "later"]
    settle(harness, cancel(claim))
    assert ids_in(harness, "cancelled") == ["waiting", "later", "running"]


def test_a_thousand_in_one_call(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    assert harness.broker.cancel(names(1000)) == [CancelResult.CANCELLED] * 1000
    assert ids_in(harness, "cancelled") == names(1000)
    assert ids_in(harness, "low") == []
    assert counter(harness, "cancelled") == 1000
    assert drift(harness) == 0


def test_the_list_is_trimmed_together_with_the_records(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 3})
    enqueue(harness, *names(5))
    for id in names(5):
        harness.broker.cancel([id])
    assert ids_in(harness, "cancelled") == names(5)[2:]
    assert [has_record(harness, id) for id in names(5)] == [False, False, True, True, True]
    assert drift(harness) == 0


def test_the_list_is_trimmed_at_the_end_of_a_call(make_harness: MakeHarness) -> None:
    """A job that the call pushes off the list is still known to the rest of the call."""
    harness = make_harness(**{"worker.completed_max": 1})
    enqueue(harness, "old", "new")
    harness.broker.cancel(["old"])
    assert harness.broker.cancel(["new", "old"]) == [CancelResult.CANCELLED, CancelResult.ENDED]
    assert ids_in(harness, "cancelled") == ["new"]
    assert not has_record(harness, "old")


def test_the_record_lives_for_the_history_ttl(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.broker.cancel(["a"])
    harness.advance(harness.config.worker.history_ttl - 0.001)
    assert has_record(harness, "a")
    harness.advance(0.001)
    assert not has_record(harness, "a")


def test_a_job_in_a_paused_queue_can_be_cancelled(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.broker.pause("low")
    assert harness.broker.cancel(["a"]) == [CancelResult.CANCELLED]
    assert places_of(harness, "a") == ["cancelled"]


def test_a_job_that_another_program_pushed_is_unknown_until_it_is_claimed(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    assert harness.broker.cancel(["a"]) == [CancelResult.UNKNOWN]
    claim_one(harness)
    assert harness.broker.cancel(["a"]) == [CancelResult.REQUESTED]


def test_of_two_copies_one_is_cancelled_at_a_time(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, failed(claim))
    harness.advance(1)
    harness.broker.promote()
    assert places_of(harness, "a") == ["low", "low"]
    assert harness.broker.cancel(["a"]) == [CancelResult.CANCELLED]
    assert places_of(harness, "a") == ["low", "cancelled"]
    assert drift(harness) == 0
    settle(harness, complete(claim_one(harness)))
    assert drift(harness) == 0


def test_a_cancel_and_a_claim_at_the_same_time_leave_the_job_in_one_place(harness: Harness) -> None:
    other = harness.another()
    register(harness, "w1")
    for id in names(20):
        enqueue(harness, id)
        reply, [answer] = run_concurrently(
            lambda: harness.broker.settle_and_claim([], ["w1"]), partial(other.cancel, [id])
        )
        assert (len(reply.claims), answer) in [(0, CancelResult.CANCELLED), (1, CancelResult.REQUESTED)]
        for claim in reply.claims:
            settle(harness, cancel(claim))
        assert places_of(harness, id) == ["cancelled"]
    assert drift(harness) == 0


def test_promote_says_that_a_running_job_is_to_be_cancelled(harness: Harness) -> None:
    """So workers need not wait for their next renewal."""
    running(harness, "a", slot="s1")
    running(harness, "d", slot="s2")
    enqueue(harness, "b")
    other = harness.another()
    before = other.promote().cancel_requests
    assert harness.broker.cancel(["b", "unknown"]) == [CancelResult.CANCELLED, CancelResult.UNKNOWN]
    assert other.promote().cancel_requests == before, "no worker has to do anything"
    harness.broker.cancel(["a"])
    once = other.promote().cancel_requests
    assert once > before
    harness.broker.cancel(["a"])
    assert harness.broker.promote().cancel_requests == once, "a repeat has no second effect"
    harness.broker.cancel(["d"])
    enqueue(harness, "c", delay_ms=1)
    harness.advance(1)
    promoted = other.promote()
    assert promoted.count == 1, "a call that moves jobs says it, too"
    assert promoted.cancel_requests > once


def test_a_call_that_cancels_several_running_jobs_is_one_request(harness: Harness) -> None:
    running(harness, "a", slot="s1")
    running(harness, "b", slot="s2")
    before = harness.broker.promote().cancel_requests
    assert harness.broker.cancel(["a", "b"]) == [CancelResult.REQUESTED] * 2
    assert harness.broker.promote().cancel_requests == before + 1
