"""overdue and bury_overdue: a waiting job whose deadline has passed becomes dead without being claimed."""

from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.protocol import FullBroker, Order
from fileq.brokers.schedules import Fire
from fileq.brokers.types import LONGEST_LOOK_MS, RETURNED_LOOK_MS, RUNNING_LOOK_MS, Entry, Revival
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.job import Claim, State, decode, encode, rfc3339_ms
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Settlement, SettleResult, cancel, complete, release
from fileq.testing.conformance.batch_builders import batch_of, callback, callback_jobs, counts, create
from fileq.testing.conformance.builders import (
    MakeSettlement,
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
    ids_in,
    job_of,
    names,
    places_of,
    record_of,
    settle,
    snapshot,
    subscribed,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

PASSED = "deadline passed"


def enqueue_with_deadline(
    harness: Harness, *ids: str, after_s: float = 10, queue: str = "low", options: Any = None, **fields: Any
) -> None:
    deadline = rfc3339_ms(harness.clock.ms + round(after_s * 1000))
    entries = [Entry(a_job(id, deadline=deadline, **fields), queue, **(options or {})) for id in ids]
    harness.broker.enqueue(entries)


def too_late(claim: Claim) -> Settlement:
    """The burial of a worker that makes no attempt."""
    return burial(claim, error=PASSED, kind="DeadlinePassed", refused=True)


def ids_overdue(harness: Harness, limit: int = 500) -> list[str]:
    return [claim.id for claim in harness.broker.overdue(limit)]


def bury_all(harness: Harness, broker: FullBroker | None = None) -> tuple[SettleResult, ...]:
    broker = broker or harness.broker
    return broker.bury_overdue([too_late(claim) for claim in broker.overdue()])


def next_look_ms(harness: Harness) -> int | None:
    return harness.broker.promote(0).next_deadline_ms


# which jobs are overdue


def test_a_job_is_overdue_at_its_deadline_and_not_before(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    enqueue(harness, "without")
    assert next_look_ms(harness) == harness.clock.ms + 10_000
    harness.advance(9.999)
    assert ids_overdue(harness) == []
    harness.advance(0.001)
    [claim] = harness.broker.overdue()
    raw, job = record_of(harness, "a").raw, job_of(claim)
    assert (claim.slot, claim.queue, claim.raw, job.id, claim.record_id) == ("", "low", raw, "a", "a")
    assert claim.claimed_ms == harness.clock.ms


def test_a_job_without_a_deadline_is_never_looked_at(harness: Harness) -> None:
    enqueue(harness, "a")
    enqueue(harness, "later", delay_ms=60_000)
    enqueue_with_deadline(harness, "first", after_s=1)
    harness.broker.enqueue([Entry(a_job("unreadable", deadline="tomorrow"), "low")])
    harness.advance(3600)
    assert ids_overdue(harness) == ["first"]


def test_the_deadline_of_a_job_that_is_enqueued_too_late_has_passed(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a", after_s=-60)
    assert bury_all(harness) == (SettleResult.DONE,)


def test_pending_scheduled_retrying_and_deferred_jobs_are_overdue(harness: Harness) -> None:
    for id, end in (("retrying", failed), ("deferred", deferred)):
        enqueue_with_deadline(harness, id)
        settle(harness, end(claim_one(harness), delay_ms=60_000))
    enqueue_with_deadline(harness, "scheduled", options={"delay_ms": 60_000})
    enqueue_with_deadline(harness, "released", after_s=5)
    settle(harness, release(claim_one(harness)))
    enqueue_with_deadline(harness, "promoted", options={"delay_ms": 1000})
    harness.advance(2)
    harness.broker.promote()
    harness.broker.pause("low")
    harness.advance(8)
    assert bury_all(harness) == (SettleResult.DONE,) * 5
    assert sorted(ids_in(harness, "dead_letter")) == ["deferred", "promoted", "released", "retrying", "scheduled"]
    assert (ids_in(harness, "low"), ids_in(harness, "scheduled"), drift(harness)) == ([], [], 0)


def test_follow_ups_and_jobs_of_schedules_are_looked_at(harness: Harness) -> None:
    deadline = rfc3339_ms(harness.clock.ms + 1000)
    enqueue(harness, "a")
    following = FollowUp(a_job("following", deadline=deadline), "low")
    settle(harness, replace(complete(claim_one(harness)), follow_ups=(following,)))
    harness.broker.define_schedule("nightly", "r1", 1000)
    harness.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(a_job("fired", deadline=deadline), "low")))
    harness.advance(1)
    assert sorted(ids_overdue(harness)) == ["fired", "following"]


def test_callbacks_of_batches_are_looked_at(harness: Harness) -> None:
    deadline = rfc3339_ms(harness.clock.ms + 10_000)
    final = callback("b", CallbackKind.FINALLY, deadline=deadline)
    harness.broker.create_batch(NewBatch("b", callbacks=(final,)))
    assert next_look_ms(harness) is None, "it is not enqueued yet"
    harness.broker.seal_batch("b")
    assert next_look_ms(harness) == harness.clock.ms + 10_000
    harness.advance(10)
    assert bury_all(harness) == (SettleResult.DONE,)
    assert ids_in(harness, "dead_letter") == ["b.finally"]


def test_a_running_job_is_left_alone_and_looked_at_again_when_it_may_wait(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    claim = claim_one(harness)
    harness.advance(10)
    before = snapshot(harness, "a")
    assert ids_overdue(harness) == []
    assert snapshot(harness, "a") == before
    assert next_look_ms(harness) == harness.clock.ms + RUNNING_LOOK_MS
    settle(harness, failed(claim, delay_ms=60_000))
    harness.advance(RUNNING_LOOK_MS / 1000)
    assert bury_all(harness) == (SettleResult.DONE,)
    assert [attempt.outcome for attempt in record_of(harness, "a").attempts] == ["failed", "refused"]


def test_a_job_that_has_ended_is_forgotten_long_before_its_deadline(harness: Harness) -> None:
    enqueue_with_deadline(harness, "ended", "waiting", after_s=86_400)
    settle(harness, complete(claim_one(harness)))
    harness.advance(LONGEST_LOOK_MS / 1000)
    assert ids_overdue(harness) == []
    harness.broker.cancel(["waiting"])
    assert next_look_ms(harness) == harness.clock.ms + LONGEST_LOOK_MS
    harness.advance(LONGEST_LOOK_MS / 1000)
    assert ids_overdue(harness) == []
    assert next_look_ms(harness) is None


def test_a_job_that_waits_for_days_is_overdue_at_its_deadline(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a", after_s=1.5 * LONGEST_LOOK_MS / 1000)
    harness.advance(LONGEST_LOOK_MS / 1000)
    assert ids_overdue(harness) == []
    assert next_look_ms(harness) == harness.clock.ms + LONGEST_LOOK_MS // 2
    harness.advance(LONGEST_LOOK_MS / 2000)
    assert ids_overdue(harness) == ["a"]


def test_the_earliest_deadlines_come_first_and_no_more_than_the_limit(harness: Harness) -> None:
    for id, after_s in (("b", 2), ("c", 3), ("a", 1), ("d", 3)):
        enqueue_with_deadline(harness, id, after_s=after_s)
    harness.advance(3)
    assert ids_overdue(harness, 3) == ["a", "b", "c"]
    assert ids_overdue(harness, 3) == ["d"]


def test_a_job_that_was_returned_is_returned_again_if_its_worker_died(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    assert ids_overdue(harness) == ["a"]
    assert [claim.id for claim in harness.another().overdue()] == []
    assert next_look_ms(harness) == harness.clock.ms + RETURNED_LOOK_MS
    assert places_of(harness, "a") == ["low"]
    harness.advance(RETURNED_LOOK_MS / 1000)
    assert [claim.id for claim in harness.another().overdue()] == ["a"]


def test_a_member_of_a_cancelled_batch_is_left_to_its_cancellation(harness: Harness) -> None:
    create(harness)
    enqueue_with_deadline(harness, "a", batch_id="b", options={"joins": True})
    harness.broker.cancel_batch("b")
    harness.advance(10)
    assert ids_overdue(harness) == []
    harness.broker.cancel(["a"])
    assert counts(harness) == {"total": 1, "cancelled": 1}


def test_a_job_that_is_put_back_after_its_deadline_is_overdue_again(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    bury_all(harness)
    dead = record_of(harness, "a").raw
    fresh = encode(decode(dead).but(error=None, failed_at=None))
    assert harness.broker.revive([Revival(dead, "a", fresh, "low")])[0].is_revived
    assert bury_all(harness) == (SettleResult.DONE,)
    assert places_of(harness, "a") == ["dead_letter"]
    assert (record_of(harness, "a").attempt_count, drift(harness)) == (2, 0)


# burying them


def test_a_job_that_is_overdue_dies_as_if_a_worker_had_refused_it(harness: Harness) -> None:
    """The same record, counters and event, but for the slot and the count of claims."""
    enqueue_with_deadline(harness, "a")
    enqueue(harness, "before", "after")
    harness.advance(10)
    [claim] = harness.broker.overdue()
    settlement = too_late(claim)
    with subscribed(harness) as next_events:
        assert harness.broker.bury_overdue([settlement]) == (SettleResult.DONE,)
        [event] = next_events(1)
    assert (event.event, event.job_id, event.worker_id, event.error) == ("job:dead", "a", "", PASSED)
    record, now_ms = record_of(harness, "a"), harness.clock.ms
    assert (record.state, record.raw, record.error, record.queued) == (State.DEAD, settlement.next_raw, PASSED, 0)
    assert (record.started_ms, record.ended_ms, record.due_ms) == (now_ms, now_ms, 0)
    assert (record.fingerprint, record.slot) == (settlement.fingerprint, "")
    [attempt] = record.attempts
    assert (attempt.outcome, attempt.is_fatal) == ("refused", True)
    assert (attempt.started_ms, attempt.ended_ms) == (now_ms, now_ms)
    counted = [counter(harness, name) for name in ("dead", "error:DeadlinePassed", "failed", "consumed", "adopted")]
    assert counted == [1, 1, 0, 0, 0]
    assert (places_of(harness, "a"), ids_in(harness, "low")) == (["dead_letter"], ["before", "after"])
    assert next_look_ms(harness) is None
    assert drift(harness) == 0


def test_the_order_and_the_follow_ups_of_an_overdue_job_are_kept(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [claim] = harness.broker.overdue()
    following = FollowUp(a_job("mourn", parent_id="a"), "high")
    settlement = replace(too_late(claim), order=b"bury \n/data/a.pdf", follow_ups=(following,))
    assert harness.broker.bury_overdue([settlement]) == (SettleResult.DONE,)
    assert list(harness.broker.orders(60_000)) == [Order("a", "", harness.clock.ms, b"bury \n/data/a.pdf")]
    assert (ids_in(harness, "high"), record_of(harness, "a").follow_ups) == (["mourn"], ("mourn",))
    assert drift(harness) == 0


def test_an_overdue_member_is_counted_as_dead(harness: Harness) -> None:
    create(harness, CallbackKind.CATCH, CallbackKind.FINALLY)
    enqueue_with_deadline(harness, "a", batch_id="b", options={"joins": True, "delay_ms": 60_000})
    harness.broker.seal_batch("b")
    harness.advance(10)
    assert bury_all(harness) == (SettleResult.DONE,)
    assert counts(harness) == {"total": 1, "dead": 1}
    assert (batch_of(harness).state, callback_jobs(harness)) == (BatchState.FINISHED, {"b.catch", "b.finally"})


def test_a_job_that_was_claimed_meanwhile_is_not_touched(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [overdue] = harness.broker.overdue()
    claim_one(harness)
    before = snapshot(harness, "a")
    settlement = replace(too_late(overdue), order=b"bury \n/data/a.pdf", follow_ups=(FollowUp(a_job("mourn"), "low"),))
    assert harness.broker.bury_overdue([settlement]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before
    assert list(harness.broker.orders(-1)) == []
    assert next_look_ms(harness) == harness.clock.ms + RETURNED_LOOK_MS, "it may wait again"


@pytest.mark.parametrize("end", [complete, burial, cancel])
def test_a_job_that_ended_meanwhile_is_not_touched(harness: Harness, end: MakeSettlement) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [overdue] = harness.broker.overdue()
    settle(harness, end(claim_one(harness)))
    before = snapshot(harness, "a")
    assert harness.broker.bury_overdue([too_late(overdue)]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_a_job_that_waits_with_other_bytes_by_then_is_not_touched(harness: Harness) -> None:
    """An attempt of it has failed. The next look finds these bytes."""
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [overdue] = harness.broker.overdue()
    settle(harness, failed(claim_one(harness), delay_ms=60_000))
    before = snapshot(harness, "a")
    assert harness.broker.bury_overdue([too_late(overdue)]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before
    harness.advance(RETURNED_LOOK_MS / 1000)
    assert bury_all(harness) == (SettleResult.DONE,)


def test_a_job_that_was_released_meanwhile_is_buried(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [overdue] = harness.broker.overdue()
    settle(harness, release(claim_one(harness)))
    assert harness.broker.bury_overdue([too_late(overdue)]) == (SettleResult.DONE,)
    assert (places_of(harness, "a"), drift(harness)) == (["dead_letter"], 0)


def test_a_job_that_was_promoted_meanwhile_is_buried(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a", options={"delay_ms": 10_000})
    harness.advance(10)
    [claim] = harness.broker.overdue()
    harness.broker.promote()
    assert harness.broker.bury_overdue([too_late(claim)]) == (SettleResult.DONE,)
    assert (places_of(harness, "a"), drift(harness)) == (["dead_letter"], 0)


def test_the_same_burial_twice_takes_effect_once(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.advance(10)
    [claim] = harness.broker.overdue()
    settlement = too_late(claim)
    assert harness.broker.bury_overdue([settlement, settlement]) == (SettleResult.DONE, SettleResult.FENCED)
    before = snapshot(harness, "a")
    assert harness.broker.bury_overdue([settlement]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_two_callers_and_a_worker_at_the_same_time_end_each_job_once(harness: Harness) -> None:
    ids = names(60)
    enqueue_with_deadline(harness, *ids)
    harness.advance(10)
    settlements = [too_late(claim) for claim in harness.broker.overdue()]
    other, third = harness.another(), harness.another()
    slots = tuple(f"w{i}" for i in range(20))
    mine, theirs, claims = run_concurrently(
        lambda: harness.broker.bury_overdue(settlements),
        lambda: other.bury_overdue(settlements),
        lambda: claims_of(harness, *slots, broker=third),
    )
    buried = [*mine, *theirs].count(SettleResult.DONE)
    assert buried + len(claims) == 60
    assert (len(ids_in(harness, "dead_letter")), harness.broker.census().running) == (buried, len(claims))
    assert counter(harness, "dead") == buried
    assert drift(harness) == 0


def test_a_job_in_the_middle_of_a_long_queue_is_found(harness: Harness) -> None:
    """Also after the first jobs of the queue have left."""
    enqueue(harness, *names(1200, "before"))
    enqueue_with_deadline(harness, "a", "b")
    enqueue(harness, *names(1200, "after"))
    settle(harness, release(claim_one(harness)))
    claims_of(harness, "w2", "w3")
    harness.advance(10)
    assert bury_all(harness) == (SettleResult.DONE,) * 2
    assert ids_in(harness, "low") == [*names(1200, "before")[2:], *names(1200, "after")]
    assert (harness.broker.census().pending["low"], drift(harness)) == (2398, 0)


def test_a_copy_that_another_program_pushed_stays_in_its_queue(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    harness.push_raw("low", record_of(harness, "a").raw)
    harness.advance(10)
    assert bury_all(harness) == (SettleResult.DONE,)
    assert sorted(places_of(harness, "a")) == ["dead_letter", "low"]
    settle(harness, too_late(claim_one(harness)))
    assert places_of(harness, "a") == ["dead_letter"] * 2
    assert (counter(harness, "adopted"), drift(harness)) == (1, 0)


def test_a_job_that_only_another_program_pushed_is_not_looked_at(harness: Harness) -> None:
    harness.push_raw("low", foreign("a", deadline=rfc3339_ms(harness.clock.ms)))
    harness.advance(10)
    assert (ids_overdue(harness), next_look_ms(harness)) == ([], None)


def test_a_job_that_is_not_where_its_record_says_is_left_to_a_repair(harness: Harness) -> None:
    enqueue_with_deadline(harness, "a")
    enqueue_with_deadline(harness, "b", options={"delay_ms": 60_000})
    for place, id in (("low", "a"), ("scheduled", "b")):
        harness.remove_raw(place, record_of(harness, id).raw)
    harness.advance(10)
    before = snapshot(harness, "a", "b")
    assert bury_all(harness) == (SettleResult.FENCED,) * 2
    assert snapshot(harness, "a", "b") == before
    assert next_look_ms(harness) is None


def test_no_settlements_bury_nothing(harness: Harness) -> None:
    assert harness.broker.bury_overdue([]) == ()
