"""Every way in which a member can end counts it once, in the same step. A revived member is counted again."""

from collections.abc import Callable
from functools import partial

import pytest

from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import Entry
from fileq.core.batch import KEPT_MS, BatchState, CallbackKind
from fileq.core.job import encode
from fileq.core.outcome import FollowUp
from fileq.core.settlement import SettleResult, bury, cancel, complete, release, skip_vanished
from fileq.testing.conformance.batch_builders import (
    JOB_QUEUE,
    add,
    batch_of,
    callback_jobs,
    counts,
    create,
    discard,
    end,
    member,
    revive,
)
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    deferred,
    drift,
    expire_leases,
    failed,
    ids_in,
    raws_in,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

THEN, CATCH, FINALLY = CallbackKind.THEN, CallbackKind.CATCH, CallbackKind.FINALLY


# every way to end


def complete_it(harness: Harness) -> None:
    settle(harness, complete(claim_one(harness)))


def bury_it(harness: Harness) -> None:
    settle(harness, burial(claim_one(harness)))


def retry_and_bury(harness: Harness) -> None:
    settle(harness, failed(claim_one(harness), delay_ms=0))
    assert counts(harness)["waiting"] == 1
    harness.broker.promote()
    settle(harness, release(claim_one(harness)))
    settle(harness, deferred(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    bury_it(harness)


def be_reaped(harness: Harness) -> None:
    claim = claim_one(harness)
    expire_leases(harness)
    harness.broker.reap("w1", [burial(claim, died=True)])


def vanish(harness: Harness) -> None:
    claim = claim_one(harness)
    settle(harness, bury(claim, claim.raw, error="gone", kind="FileVanished", refused=True, vanished=True))


def be_refused(harness: Harness) -> None:
    settle(harness, burial(claim_one(harness), refused=True))


def cancel_running(harness: Harness) -> None:
    settle(harness, cancel(claim_one(harness)))


def cancel_by_id(harness: Harness) -> None:
    harness.broker.cancel(["a"])


def clear(harness: Harness) -> None:
    assert harness.broker.clear(JOB_QUEUE, raws_in(harness, JOB_QUEUE)) == [True]


def fire_and_cancel(harness: Harness) -> None:
    """The member is the last job of a schedule whose next slot cancels it."""
    harness.broker.define_schedule("nightly", "r1", 1000)
    first = FollowUp(a_job("a", batch_id="b"), JOB_QUEUE, joins=True)
    assert harness.broker.fire(Fire("nightly", "r1", 1000, 2000, first)) is FireResult.FIRED
    second = FollowUp(a_job("next"), "high")
    fire = Fire("nightly", "r1", 2000, 3000, second, overlap=Overlap.CANCEL)
    assert harness.broker.fire(fire) is FireResult.FIRED


def bury_and_delete(harness: Harness) -> None:
    bury_it(harness)
    assert counts(harness) == {"total": 1, "dead": 1}
    assert discard(harness, "a") == [True]


ENDS: dict[str, tuple[Callable[[Harness], None], str]] = {
    "complete": (complete_it, "completed"),
    "superseded": (lambda harness: end(harness, lambda claim: complete(claim, superseded=True)), "completed"),
    "skipped": (lambda harness: end(harness, skip_vanished), "completed"),
    "bury": (bury_it, "dead"),
    "retry, release, defer and bury": (retry_and_bury, "dead"),
    "reap": (be_reaped, "dead"),
    "vanish": (vanish, "dead"),
    "refuse": (be_refused, "dead"),
    "cancel while it runs": (cancel_running, "cancelled"),
    "cancel by id": (cancel_by_id, "cancelled"),
    "clear": (clear, "cancelled"),
    "fire": (fire_and_cancel, "cancelled"),
    "delete": (bury_and_delete, "deleted"),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_way_to_end_counts_once(harness: Harness, name: str) -> None:
    way, state = ENDS[name]
    create(harness, THEN, FINALLY)
    if name != "fire":
        add(harness, "a")
    way(harness)
    assert counts(harness) == {"total": 1, state: 1}
    assert batch_of(harness).state is BatchState.OPEN
    assert harness.broker.seal_batch("b")
    assert batch_of(harness).state is BatchState.FINISHED
    assert callback_jobs(harness) == ({"b.then", "b.finally"} if state == "completed" else {"b.finally"})
    assert drift(harness) == 0


def test_a_member_that_is_deleted_before_the_batch_is_sealed_prevents_then(harness: Harness) -> None:
    create(harness, THEN, allow_failures=True)
    add(harness, "a")
    bury_it(harness)
    discard(harness, "a")
    harness.broker.seal_batch("b")
    assert callback_jobs(harness) == set()


def test_a_repeated_settlement_counts_nothing_more(harness: Harness) -> None:
    create(harness, FINALLY)
    add(harness, "a")
    harness.broker.seal_batch("b")
    settlement = complete(claim_one(harness))
    assert harness.broker.settle_and_claim([settlement], []).finished_batches == ("b",)
    again = harness.broker.settle_and_claim([settlement], [])
    assert (again.settled, again.finished_batches) == ((SettleResult.DONE_ALREADY,), ())
    assert counts(harness) == {"total": 1, "completed": 1}
    assert ids_in(harness, JOB_QUEUE) == ["b.finally"]


def test_a_copy_that_ends_later_counts_nothing_more(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    harness.push_raw(JOB_QUEUE, encode(member("a").job))
    complete_it(harness)
    assert claims_of(harness, "w1") == []
    assert (counts(harness), ids_in(harness, "dead_letter")) == ({"total": 1, "completed": 1}, ["a"])
    assert batch_of(harness).is_cancelled is False


def test_running_members_are_those_that_a_slot_holds(harness: Harness) -> None:
    create(harness)
    add(harness, "a", "c", "d")
    first, _ = claims_of(harness, "w1", "w2")
    assert counts(harness) == {"total": 3, "waiting": 1, "running": 2}
    settle(harness, failed(first))
    assert counts(harness) == {"total": 3, "waiting": 2, "running": 1}
    harness.remove_record("c")  # the slot holds it all the same
    assert counts(harness) == {"total": 3, "waiting": 2, "running": 1}
    harness.broker.enqueue([Entry(a_job("c"), JOB_QUEUE)])  # another job of this id, which is no member
    assert counts(harness) == {"total": 3, "waiting": 3}
    harness.broker.deregister(["w2"])
    assert counts(harness) == {"total": 3, "waiting": 3}


def test_members_that_end_at_the_same_time_finish_the_batch_once(harness: Harness) -> None:
    create(harness, THEN, FINALLY)
    add(harness, *"acde")
    harness.broker.seal_batch("b")
    claims = claims_of(harness, "w1", "w2", "w3", "w4")
    calls = [partial(harness.another().settle_and_claim, [complete(claim)], []) for claim in claims]
    answers = run_concurrently(*calls)
    assert sorted(id for answer in answers for id in answer.finished_batches) == ["b"]
    assert counts(harness) == {"total": 4, "completed": 4}
    assert sorted(ids_in(harness, JOB_QUEUE)) == ["b.finally", "b.then"]


# revival


def test_a_revived_member_makes_the_batch_unfinished_and_then_may_still_fire(harness: Harness) -> None:
    create(harness, THEN, CATCH, FINALLY, allow_failures=True)
    add(harness, "a")
    harness.broker.seal_batch("b")
    bury_it(harness)
    assert callback_jobs(harness) == {"b.catch", "b.finally"}
    assert revive(harness, "a")
    assert (batch_of(harness).state, batch_of(harness).finished_ms) == (BatchState.SEALED, 0)
    assert counts(harness) == {"total": 1, "waiting": 1}
    end(harness, complete, id="a")
    assert counts(harness) == {"total": 1, "completed": 1}
    assert callback_jobs(harness) == {"b.then", "b.catch", "b.finally"}
    assert len(ids_in(harness, JOB_QUEUE)) == 3


def test_finally_never_fires_twice(harness: Harness) -> None:
    create(harness, CATCH, FINALLY, allow_failures=True)
    add(harness, "a")
    harness.broker.seal_batch("b")
    for _ in range(3):
        end(harness, burial, id="a")
        for id in ("b.catch", "b.finally"):
            harness.broker.cancel([id])
        harness.advance(harness.config.worker.history_ttl + 10)
        assert revive(harness, "a")
    assert callback_jobs(harness) == set()
    assert counter(harness, "produced") == 3  # with one of each callback


def test_a_revived_batch_does_not_expire(harness: Harness) -> None:
    create(harness, allow_failures=True)
    add(harness, "a")
    harness.broker.seal_batch("b")
    bury_it(harness)
    revive(harness, "a")
    harness.advance(KEPT_MS / 1000 + 10)
    assert counts(harness) == {"total": 1, "waiting": 1}
