"""Jobs that only fileq itself may make: they are refused from others, and their records have an origin. A record
without one, which another program caused, never stands in their way."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.schedules import Fire, FireResult
from fileq.brokers.types import EnqueueResult, Entry, Revival, Revived
from fileq.core.batch import BatchState, Callback, CallbackKind
from fileq.core.errors import JobError
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Buried, Claim, Job, State, encode, raw_id
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import OWN, foreign_error, origin_of
from fileq.core.settlement import SettleResult, cancel, complete, release
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    ids_in,
    job_of,
    places_of,
    raws_in,
    reap_all,
    record_of,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.harness import Harness

SCAN: dict[str, Any] = {"type": "fileq.scan", "payload": Raw(b'{"dir":"/srv/in"}')}
RESERVED = {
    "a type of fileq's own": a_job("x", type="fileq.delivery_check"),
    "an unknown type of fileq's own": a_job("x", type="fileq.x"),
    "the id of a slot": a_job("sched.nightly.20260101T000000Z"),
    "the id of a run by hand": a_job("sched.nightly.manual.1"),
    "the id of then": a_job("payroll.then"),
    "the id of catch": a_job("payroll.catch"),
    "the id of finally": a_job("payroll.finally"),
}
each_reserved = pytest.mark.parametrize("job", RESERVED.values(), ids=RESERVED.keys())


def enqueue_it(harness: Harness, job: Job) -> None:
    harness.broker.enqueue([Entry(job, "low")])


def enqueue_it_among_others(harness: Harness, job: Job) -> None:
    harness.broker.enqueue([Entry(a_job("other"), "low"), Entry(job, "low", delay_ms=5)])


def follow_with_it(harness: Harness, job: Job) -> None:
    held = claim_one(harness)  # the job that the slot holds
    harness.broker.settle_and_claim([replace(complete(held), follow_ups=(FollowUp(job, "low"),))], [])


def fire_it(harness: Harness, job: Job) -> None:
    harness.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(job, "low")))


WAYS_IN: dict[str, Callable[[Harness, Job], None]] = {
    "alone": enqueue_it,
    "among others": enqueue_it_among_others,
    "as a follow-up": follow_with_it,
    "of a schedule": fire_it,
}


@each_reserved
@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN.keys())
def test_what_fileq_reserves_is_refused_and_nothing_changes(
    harness: Harness, way: Callable[[Harness, Job], None], job: Job
) -> None:
    """C1, H4: no way into the broker takes a reserved type or id from another maker than fileq."""
    harness.broker.define_schedule("nightly", "r1", 1000)
    running(harness, "parent")
    before = snapshot(harness, "parent", "other", job.id), harness.broker.schedules()
    with pytest.raises(JobError, match="is reserved"):
        way(harness, job)
    assert (snapshot(harness, "parent", "other", job.id), harness.broker.schedules()) == before


def test_a_callback_of_a_type_of_fileqs_own_is_refused(harness: Harness) -> None:
    """C1: a batch can't bring in what a job can't."""
    callback = Callback(CallbackKind.THEN, encode(a_job("b.then", **SCAN)), "low")
    with pytest.raises(JobError, match=r"type 'fileq\.scan' is reserved"):
        harness.broker.create_batch(NewBatch("b", callbacks=(callback,)))
    assert harness.broker.batches_by_id(["b"]) == [None]


def test_the_batch_of_a_delivery_takes_no_jobs_of_others(harness: Harness) -> None:
    """H5: only a producer creates and fills the batches of deliveries; a job that names one is no member."""
    with pytest.raises(JobError, match="batch 'delivery-in-1' is reserved"):
        harness.broker.create_batch(NewBatch("delivery-in-1"))
    assert harness.broker.create_batch(NewBatch("delivery-in-1", is_own=True))
    with pytest.raises(JobError, match="batch 'delivery-in-1' is reserved"):
        harness.broker.create_batch(NewBatch("child", parent="delivery-in-1"))
    with pytest.raises(JobError, match="batch 'delivery-in-1' is reserved"):
        harness.broker.enqueue([Entry(a_job("a", batch_id="delivery-in-1"), "low", joins=True)])
    harness.push_raw("low", foreign("b", batch_id="delivery-in-1"))
    claim = claim_one(harness)
    [view] = harness.broker.batches_by_id(["delivery-in-1"])
    assert view is not None
    assert (view.total, record_of(harness, "b").batch) == (0, "")
    added = [FollowUp(a_job(id, batch_id="delivery-in-1"), "low", joins=True) for id in ("outside", "inside")]
    settle(harness, replace(complete(claim), follow_ups=(added[0],)))
    settle(harness, complete(claim_one(harness)))
    own = Entry(a_job("c", batch_id="delivery-in-1"), "low", joins=True, is_own=True, fills_delivery=True)
    assert harness.broker.enqueue([own]).results == (EnqueueResult.ENQUEUED,)
    settle(harness, replace(complete(claim_one(harness)), follow_ups=(added[1],)))
    batches = {id: record_of(harness, id).batch for id in ("outside", "c", "inside")}
    assert batches == {"outside": "", "c": "delivery-in-1", "inside": "delivery-in-1"}
    [view] = harness.broker.batches_by_id(["delivery-in-1"])
    assert view is not None
    assert (view.total, view.completed, drift(harness)) == (2, 1, 0)


# the origin


def test_the_record_of_a_job_that_fileq_made_has_an_origin(harness: Harness) -> None:
    job = a_job("x", **SCAN)
    harness.broker.enqueue([Entry(job, "low", is_own=True)])
    harness.broker.enqueue([Entry(a_job("y", **SCAN), "low", is_own=True, delay_ms=5), Entry(a_job("z"), "low")])
    assert [record_of(harness, id).origin for id in "xyz"] == [origin_of(job), origin_of(job), ""]
    assert origin_of(job) not in ("", OWN)


def test_jobs_of_schedules_callbacks_and_follow_ups_have_one(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 1000)
    slot = FollowUp(a_job("sched.nightly.1"), "low", is_own=True)
    assert harness.broker.fire(Fire("nightly", "r1", 1000, 2000, slot)) is FireResult.FIRED
    callback = Callback(CallbackKind.FINALLY, encode(a_job("b.finally")), "low")
    harness.broker.create_batch(NewBatch("b", callbacks=(callback,)))
    harness.broker.seal_batch("b")
    follow_ups = (FollowUp(a_job("told", **SCAN), "low", is_own=True), FollowUp(a_job("next"), "low"))
    settle(harness, replace(complete(running(harness, "a", queue="high")), follow_ups=follow_ups))
    found = {id: record_of(harness, id).origin for id in ("sched.nightly.1", "b.finally", "told", "next", "a")}
    assert found == {
        "sched.nightly.1": OWN,
        "b.finally": OWN,
        "told": origin_of(a_job("told", **SCAN)),
        "next": "",
        "a": "",
    }


def test_the_origin_lasts_as_long_as_the_job(harness: Harness) -> None:
    job = a_job("x", **SCAN)
    harness.broker.enqueue([Entry(job, "low", is_own=True)])
    settle(harness, failed(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    settle(harness, deferred(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    settle(harness, release(claim_one(harness)))
    claim_one(harness)
    expire_leases(harness)
    reap_all(harness)
    settlement = burial(claim_one(harness))
    settle(harness, settlement)
    harness.broker.revive([Revival(settlement.next_raw, "x", encode(job), "low")])
    claim = claim_one(harness)
    assert record_of(harness, "x").origin == origin_of(job_of(claim)) == origin_of(job)
    settle(harness, complete(claim))
    assert (record_of(harness, "x").origin, drift(harness)) == (origin_of(job), 0)


def test_a_job_that_another_program_pushed_has_none(harness: Harness) -> None:
    """C1: the bytes of a job say nothing about its origin, also if they are those of a job of fileq."""
    harness.push_raw("low", encode(a_job("x", **SCAN)))
    claim_one(harness)
    assert record_of(harness, "x").origin == ""


# records that another program caused


def plant(harness: Harness, id: str, how: str) -> Claim | None:
    """Has another program push a job with this id, and brings it into a state. Returns its claim if it runs."""
    if how == "unclaimed":
        harness.push_raw("high", foreign(id))
        return None
    harness.push_raw("low", foreign(id))
    claim = claim_one(harness, "planter")
    ends: dict[str, Any] = {
        "completed": complete,
        "dead": burial,
        "cancelled": cancel,
        "retrying": failed,
        "deferred": deferred,
        "released": release,
    }
    if how == "asked to stop":
        harness.broker.cancel([id])
    if how in ends:
        settle(harness, ends[how](claim))
        return None
    return claim


each_plant = pytest.mark.parametrize(
    "how",
    [
        "unclaimed",
        "running",
        "asked to stop",
        "completed",
        "dead",
        "cancelled",
        "retrying",
        "deferred",
        "released",
    ],
)


def run_all(harness: Harness, held: Claim | None) -> list[bytes]:
    """Completes what another program's job and all others have left to do. Returns the bytes that were claimed."""
    ran: list[bytes] = []
    if held is not None:
        settle(harness, complete(held))
    for _ in range(10):
        harness.advance(10)
        harness.broker.promote()
        claims = claims_of(harness, "w8", "w9")
        if not claims:
            return ran
        ran += [claim.raw for claim in claims]
        for claim in claims:
            assert not claim.is_cancelled
            settle(harness, complete(claim))
    raise AssertionError("jobs run again and again")


@each_plant
def test_a_planted_id_does_not_keep_the_job_of_a_slot_out(harness: Harness, how: str) -> None:
    """H4: the slot fires, whatever became of the job that another program pushed under its id."""
    id = "sched.nightly.20260101T000000Z"
    held = plant(harness, id, how)
    harness.broker.define_schedule("nightly", "r1", 1000)
    job = a_job(id)
    assert harness.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(job, "low", is_own=True))) is FireResult.FIRED
    record = record_of(harness, id)
    assert (record.origin, record.raw, record.is_cancel_requested) == (OWN, encode(job), False)
    assert (record.attempt_count, record.error, record.batch) == (0, "", "")
    assert drift(harness) == (-1 if how in ("unclaimed", "released") else 0), "a copy in a queue will be adopted"
    assert run_all(harness, held).count(encode(job)) == 1
    assert (record_of(harness, id).origin, drift(harness), counter(harness, "adopted")) == (OWN, 0, 1)
    again = Fire("nightly", "r1", 2000, 3000, FollowUp(job, "low", is_own=True))
    assert harness.broker.fire(again) is FireResult.DUPLICATE, "its own record counts"


@each_plant
def test_a_planted_id_does_not_keep_a_callback_out(harness: Harness, how: str) -> None:
    """H4: `payroll.then` runs, whatever became of the job that another program pushed under its id."""
    held = plant(harness, "payroll.then", how)
    raw = encode(a_job("payroll.then", type="pay"))
    harness.broker.create_batch(NewBatch("payroll", callbacks=(Callback(CallbackKind.THEN, raw, "low"),)))
    harness.broker.seal_batch("payroll")
    assert record_of(harness, "payroll.then").origin == OWN
    assert run_all(harness, held).count(raw) == 1
    assert (drift(harness), counter(harness, "adopted")) == (0, 1)


@each_plant
def test_a_planted_id_keeps_no_other_job_of_fileqs_own_out(harness: Harness, how: str) -> None:
    """H4: neither a delivery check nor a delivery of a webhook, whose ids can be computed."""
    held = plant(harness, "x", how)
    job = a_job("x", **SCAN)
    assert harness.broker.enqueue([Entry(job, "low", is_own=True)]).results == (EnqueueResult.ENQUEUED,)
    assert harness.broker.enqueue([Entry(job, "low", is_own=True)]).results == (EnqueueResult.DUPLICATE,)
    assert run_all(harness, held).count(encode(job)) == 1
    assert drift(harness) == 0


def test_a_planted_follow_up_of_fileqs_own_is_replaced_and_any_other_left_out(harness: Harness) -> None:
    for id in ("own", "other"):
        plant(harness, id, "completed")
    follow_ups = (FollowUp(a_job("own"), "high", is_own=True), FollowUp(a_job("other"), "high"))
    settle(harness, replace(complete(running(harness, "a")), follow_ups=follow_ups))
    assert (ids_in(harness, "high"), drift(harness)) == (["own"], 0)
    assert record_of(harness, "a").follow_ups == ("own",)


@each_plant
def test_a_planted_id_does_not_keep_a_follow_up_out_that_joins_its_batch(harness: Harness, how: str) -> None:
    """The id of a follow-up can be computed from that of its parent, also if the follow-up joins the parent's batch."""
    harness.broker.create_batch(NewBatch("b"))
    harness.broker.enqueue([Entry(a_job("m", batch_id="b"), "low", joins=True)])
    harness.broker.seal_batch("b")
    parent = claim_one(harness)
    held = plant(harness, "next", how)
    job = a_job("next", batch_id="b")
    settle(harness, replace(complete(parent), follow_ups=(FollowUp(job, "low", joins=True, is_own=True),)))
    assert (record_of(harness, "next").origin, record_of(harness, "next").batch) == (OWN, "b")
    assert record_of(harness, "m").follow_ups == ("next",)
    assert run_all(harness, held).count(encode(job)) == 1
    [view] = harness.broker.batches_by_id(["b"])
    assert view is not None
    assert (view.state, view.total, view.completed, drift(harness)) == (BatchState.FINISHED, 2, 2, 0)


def test_a_follow_up_replaces_the_job_that_others_added_to_its_batch_under_its_id(harness: Harness) -> None:
    harness.broker.create_batch(NewBatch("b"))
    jobs = a_job("m", batch_id="b"), a_job("next", batch_id="b")
    harness.broker.enqueue([Entry(jobs[0], "low", joins=True), Entry(jobs[1], "low", joins=True, delay_ms=5)])
    harness.broker.seal_batch("b")
    job = a_job("next", batch_id="b", type="real")
    follow_ups = (FollowUp(job, "low", joins=True, is_own=True),)
    settle(harness, replace(complete(claim_one(harness)), follow_ups=follow_ups))
    assert run_all(harness, None) == [encode(job)]
    [view] = harness.broker.batches_by_id(["b"])
    assert view is not None
    assert (view.state, view.total, view.completed, drift(harness)) == (BatchState.FINISHED, 2, 2, 0)


@pytest.mark.parametrize("batch", ["sealed", "delivery-in-1"])
def test_no_batch_is_opened_by_a_follow_up_of_fileqs_own(harness: Harness, batch: str) -> None:
    """Its parent may be a job that another program pushed, with the name of any batch in it."""
    harness.broker.create_batch(NewBatch(batch, is_own=True))
    filler = Entry(a_job("m", batch_id=batch), "low", delay_ms=5, joins=True, is_own=True, fills_delivery=True)
    harness.broker.enqueue([filler])
    if batch == "sealed":
        harness.broker.seal_batch(batch)
    harness.push_raw("low", foreign("outside", batch_id=batch))
    follow_ups = (FollowUp(a_job("next", batch_id=batch), "low", joins=True, is_own=True),)
    settle(harness, replace(complete(claim_one(harness)), follow_ups=follow_ups))
    [view] = harness.broker.batches_by_id([batch])
    assert view is not None
    assert (view.total, record_of(harness, "next").batch, record_of(harness, "next").origin) == (1, "", OWN)
    assert drift(harness) == 0


def test_an_own_job_fills_no_delivery_unless_its_producer_adds_it(harness: Harness) -> None:
    harness.broker.create_batch(NewBatch("delivery-in-1", is_own=True))
    with pytest.raises(JobError, match="batch 'delivery-in-1' is reserved"):
        harness.broker.enqueue([Entry(a_job("a", batch_id="delivery-in-1"), "low", joins=True, is_own=True)])
    assert harness.broker.records(["a"]) == [None]


def test_a_job_that_others_enqueued_is_replaced_too(harness: Harness) -> None:
    """A client may know the id of a job to come, such as that of a file of a delivery."""
    enqueue(harness, "x", delay_ms=5_000)
    assert harness.broker.enqueue([Entry(a_job("x", **SCAN), "low", is_own=True)]).results == (EnqueueResult.ENQUEUED,)
    assert sorted(places_of(harness, "x")) == ["low", "scheduled"]
    assert run_all(harness, None) == [encode(a_job("x", **SCAN))]
    assert (record_of(harness, "x").state, drift(harness)) == (State.COMPLETED, 0)
    assert raws_in(harness, "dead_letter") == [encode(a_job("x"))], "what others enqueued is kept"


def test_a_batch_still_counts_a_member_whose_record_was_replaced(harness: Harness) -> None:
    held = plant(harness, "sched.n.1", "running")
    harness.broker.create_batch(NewBatch("b"))
    harness.broker.join_batch("b", ["sched.n.1"])
    harness.broker.seal_batch("b")
    harness.broker.enqueue([Entry(a_job("sched.n.1"), "low", is_own=True)])
    assert len(run_all(harness, held)) == 1
    harness.broker.count_members("b", harness.broker.unfinished_members("b").ids)
    [view] = harness.broker.batches_by_id(["b"])
    assert view is not None
    assert (view.state, view.total, view.completed) == (BatchState.FINISHED, 1, 1)


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN.keys())
def test_a_job_that_no_worker_could_read_is_refused_and_nothing_changes(
    harness: Harness, way: Callable[[Harness, Job], None]
) -> None:
    """A1: a job with a timeout of 100 years had a record, and its bytes were buried as those of no job."""
    harness.broker.define_schedule("nightly", "r1", 1000)
    running(harness, "parent")
    before = snapshot(harness, "parent", "other", "x"), harness.broker.schedules()
    deep = Raw(b"[" * 65 + b"]" * 65)
    for job in (a_job("x", timeout=4e9), a_job("x", filesize=-1), a_job("x", type="t", payload=deep)):
        with pytest.raises(JobError, match="of job x"):
            way(harness, job)
    assert (snapshot(harness, "parent", "other", "x"), harness.broker.schedules()) == before


def test_the_payload_of_a_job_of_fileqs_own_may_hold_a_result(harness: Harness) -> None:
    """A4: the result of a job, with the levels that on_completed and webhooks put around it."""
    payload = Raw(b'{"a":{"b":' + b"[" * 64 + b"]" * 64 + b"}}")
    harness.broker.enqueue([Entry(a_job("x", type="t", payload=payload), "low", is_own=True)])
    assert job_of(claim_one(harness)).payload == payload


# bytes that another program pushes under the id of a job of fileq's own, or of a member


def fire_slot(harness: Harness, **options: Any) -> Job:
    harness.broker.define_schedule("nightly", "r1", 1000)
    job = a_job("sched.nightly.1", **options)
    assert harness.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(job, "low", is_own=True))) is FireResult.FIRED
    return job


def complete_slot(harness: Harness) -> str:
    id = fire_slot(harness).id
    settle(harness, complete(claim_one(harness, "w7")))
    return id


def complete_built_in(harness: Harness) -> str:
    id = fire_slot(harness, **SCAN).id
    settle(harness, complete(claim_one(harness, "w7")))
    return id


def retry_slot(harness: Harness) -> str:
    id = fire_slot(harness).id
    settle(harness, failed(claim_one(harness, "w7"), delay_ms=5))
    return id


def kill_slot(harness: Harness) -> str:
    id = fire_slot(harness).id
    settle(harness, burial(claim_one(harness, "w7")))
    return id


def wait_callback(harness: Harness) -> str:
    callback = Callback(CallbackKind.THEN, encode(a_job("b.then")), "low")
    harness.broker.create_batch(NewBatch("b", callbacks=(callback,)))
    harness.broker.seal_batch("b")
    return "b.then"


def add_member(harness: Harness) -> str:
    callbacks = tuple(Callback(kind, encode(a_job(f"b.{kind}")), "low") for kind in CallbackKind)
    harness.broker.create_batch(NewBatch("b", callbacks=callbacks))
    harness.broker.enqueue([Entry(a_job("m", batch_id="b"), "low", joins=True)])
    harness.broker.seal_batch("b")
    return "m"


def start_member(harness: Harness) -> str:
    add_member(harness)
    return claim_one(harness, "w7").id


def complete_member(harness: Harness) -> str:
    add_member(harness)
    settle(harness, complete(claim_one(harness, "w7")))
    return "m"


def kill_member(harness: Harness) -> str:
    add_member(harness)
    settle(harness, burial(claim_one(harness, "w7")))
    return "m"


OWNERS: dict[str, Callable[[Harness], str]] = {
    "a slot that waits": lambda harness: fire_slot(harness).id,
    "a completed slot": complete_slot,
    "a slot that is retried": retry_slot,
    "a dead slot": kill_slot,
    "a completed built-in job": complete_built_in,
    "a callback that waits": wait_callback,
    "a member that waits": add_member,
    "a member that runs": start_member,
    "a completed member": complete_member,
    "a dead member": kill_member,
}
each_owner = pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS.keys())


def everything_but_the_intruder(harness: Harness, id: str) -> Any:
    return (
        record_of(harness, id),
        [place for place in places_of(harness, id) if place not in ("high", "dead_letter")],
        harness.broker.batches_by_id(["b"]),
        harness.broker.records(["b.then", "b.catch", "b.finally"]),
        harness.broker.schedules(),
    )


def push_and_claim(harness: Harness, raw: bytes) -> list[Buried]:
    """Another program pushes these bytes, and a slot claims from their queue alone. Returns what the claim buried."""
    harness.push_raw("high", raw)
    harness.broker.pause("low")
    register(harness, "w1")
    reply = harness.broker.settle_and_claim([], ["w1"])
    assert reply.claims == ()
    harness.broker.deregister(["w1"])
    harness.broker.resume("low")
    return list(reply.buried)


def assert_untouched(harness: Harness, owner: Callable[[Harness], str], raw_of: Callable[[str], bytes]) -> None:
    id = owner(harness)
    before, raw = everything_but_the_intruder(harness, id), raw_of(id)
    buried = push_and_claim(harness, raw)
    assert [(one.id, one.slot, one.queue, one.error) for one in buried] == [
        (raw_id(raw), "w1", "high", foreign_error(id))
    ]
    assert everything_but_the_intruder(harness, id) == before
    record = record_of(harness, raw_id(raw))
    assert (record.state, record.error, record.raw) == (State.DEAD, foreign_error(id), raw)
    assert (record.fingerprint, record.origin, record.batch) == (fingerprint(record.error), "", "")
    assert raws_in(harness, "dead_letter")[-1] == raw, "byte for byte"
    assert (drift(harness), counter(harness, "adopted"), counter(harness, "error:ForeignJob")) == (0, 1, 1)


@each_owner
def test_pushed_bytes_never_touch_the_job_that_has_their_id(harness: Harness, owner: Callable[[Harness], str]) -> None:
    """ADV2 1, 2: a pushed job stopped a schedule by its id, and finished or failed the batch of another. It is dead,
    and the job that has the id goes on as if nothing had been pushed."""
    assert_untouched(harness, owner, lambda id: foreign(id, type="flaky", max_retries=1_000_000))


@pytest.mark.parametrize("name", ["a completed built-in job", "a member that runs", "a completed member"])
def test_an_exact_copy_of_a_job_that_does_not_wait_is_not_run_again(harness: Harness, name: str) -> None:
    """ADV2 3: the bytes of a completed job of a type of fileq's own ran it again."""
    assert_untouched(harness, OWNERS[name], lambda id: record_of(harness, id).raw)


@pytest.mark.parametrize("name", ["a slot that waits", "a callback that waits", "a member that waits"])
def test_of_exact_copies_of_a_job_that_waits_one_runs(harness: Harness, name: str) -> None:
    """They can't be told apart, and it makes no difference which one runs."""
    id = OWNERS[name](harness)
    raw = record_of(harness, id).raw
    harness.push_raw("high", raw)
    harness.push_raw("low", raw)
    assert run_all(harness, None).count(raw) == 1
    claims_of(harness, "w6")
    assert (raws_in(harness, "dead_letter"), drift(harness)) == ([raw, raw], 0)
    assert record_of(harness, id).state is State.COMPLETED


@pytest.mark.parametrize("make", [complete, burial, cancel, failed, deferred, release])
def test_a_planted_job_that_runs_leaves_the_job_alone_that_took_its_id(harness: Harness, make: Any) -> None:
    """However it ends: it is dead under an id of its own, and the job of the slot runs once."""
    held = plant(harness, "sched.nightly.1", "running")
    assert held is not None
    job = fire_slot(harness)
    before = record_of(harness, job.id)
    assert settle(harness, make(held)) is SettleResult.DONE
    assert record_of(harness, job.id) == before
    assert record_of(harness, raw_id(held.raw)).error == foreign_error(job.id)
    assert (raws_in(harness, "dead_letter"), drift(harness)) == ([held.raw], 0)
    assert run_all(harness, None) == [encode(job)]


@pytest.mark.parametrize("end", ["reaped", "given back"])
def test_the_planted_job_of_a_slot_that_ends_leaves_it_alone_too(harness: Harness, end: str) -> None:
    held = plant(harness, "sched.nightly.1", "running")
    assert held is not None
    job = fire_slot(harness)
    before = record_of(harness, job.id)
    if end == "reaped":
        expire_leases(harness)
        reap_all(harness)
    else:
        harness.broker.deregister([held.slot])
    assert record_of(harness, job.id) == before
    assert run_all(harness, None) == [encode(job)]
    assert (raws_in(harness, "dead_letter"), drift(harness)) == ([held.raw], 0)


@each_owner
def test_no_operator_changes_a_job_by_the_bytes_that_took_its_id(
    harness: Harness, owner: Callable[[Harness], str]
) -> None:
    """ADV2 1, 2: neither clear, nor retry, nor delete of the pushed bytes."""
    id = owner(harness)
    raw = foreign(id, type="flaky")
    before = everything_but_the_intruder(harness, id)
    harness.push_raw("high", raw)
    assert harness.broker.clear("high", [raw]) == [False]
    harness.broker.deregister(["w1"])
    harness.broker.pause("low")
    assert claims_of(harness, "w1") == []
    harness.broker.deregister(["w1"])
    harness.broker.resume("low")
    for name in (id, raw_id(raw)):
        assert harness.broker.revive([Revival(raw, name, raw, "low")]) == [Revived(False, is_foreign=True)]
    assert harness.broker.discard([(id, raw)]) == [True]
    assert everything_but_the_intruder(harness, id) == before
    assert (harness.broker.records([raw_id(raw)]), drift(harness)) == ([None], 0)


def test_when_the_job_is_forgotten_its_id_is_free_for_the_bytes_that_took_it(harness: Harness) -> None:
    id = complete_slot(harness)
    first, second = foreign(id, type="a"), foreign(id, type="b")
    assert len(push_and_claim(harness, first)) == len(push_and_claim(harness, second)) == 1
    harness.advance(int(harness.config.worker.history_ttl * 1000))
    assert harness.broker.records([id]) == [None]
    assert harness.broker.discard([(id, first)]) == [True]
    assert harness.broker.revive([Revival(second, id, second, "low")]) == [Revived(True)]
    assert harness.broker.records([raw_id(first), raw_id(second)]) == [None, None]
    settle(harness, complete(claim_one(harness)))
    assert (record_of(harness, id).state, drift(harness)) == (State.COMPLETED, 0)


def test_one_call_buries_one_and_the_next_calls_the_others(harness: Harness) -> None:
    id = complete_slot(harness)
    for number in range(3):
        harness.push_raw("high", foreign(id, type=f"t{number}"))
    enqueue(harness, "next")
    register(harness, "w1", "w2")
    replies = [harness.broker.settle_and_claim([], ["w1", "w2"]) for _ in range(3)]
    assert [(len(reply.buried), [claim.id for claim in reply.claims]) for reply in replies] == [
        (1, []),
        (1, []),
        (1, ["next"]),
    ]
    assert (len(raws_in(harness, "dead_letter")), drift(harness)) == (3, 0)
