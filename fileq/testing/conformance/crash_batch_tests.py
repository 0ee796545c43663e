"""A process killed between any two calls about batches: counts are those of the members, callbacks fire once.

As in crash_tests, each sequence is stopped before each of its calls in turn; then a reaper runs. Each call about a
batch is made twice, as after a lost reply, or by two callers at the same time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import JoinResult, NewBatch
from fileq.brokers.types import EnqueueResult, Revival
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.job import MAX_DECODED_BYTES, Claim, raw_id
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Settlement, SettleResult, cancel, complete
from fileq.testing.conformance.batch_builders import (
    EVERY_KIND,
    JOB_QUEUE,
    add,
    batch_of,
    callback,
    callback_jobs,
    counts,
    create,
    member,
    unfinished_ids,
)
from fileq.testing.conformance.batch_builders import discard as discard_member
from fileq.testing.conformance.batch_builders import revive as revive_member
from fileq.testing.conformance.builders import (
    a_job,
    an_entry,
    burial,
    claim_one,
    drift,
    enqueue,
    expire_leases,
    failed,
    id_of,
    ids_in,
    places,
    raws_in,
    record_of,
    register,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.crash_follow_up_tests import check_places
from fileq.testing.conformance.crash_tests import (
    Process,
    Step,
    claim_job,
    leave,
    promote,
    recover,
    renew,
    settle_by,
    start,
    time_passes,
)
from fileq.testing.conformance.harness import Harness, MakeHarness

BATCHES = ("parent", "b")


# the calls of a process, each made twice as after a lost reply


def create_both(process: Process) -> None:
    for id, parent in (("parent", ""), ("b", "parent")):
        callbacks = tuple(callback(id, kind, parent) for kind in EVERY_KIND)
        new = NewBatch(id, parent=parent, callbacks=callbacks)
        process.broker.create_batch(new)
        assert not process.broker.create_batch(new)


def add_two(process: Process) -> None:
    entries = [member("a"), member("c")]
    process.broker.enqueue(entries)
    assert process.broker.enqueue(entries).results == (EnqueueResult.DUPLICATE,) * 2


def join(process: Process) -> None:
    """A job that exists, and one that has no record any more."""
    process.broker.enqueue([an_entry("x")])
    assert process.broker.join_batch("b", ["x", "known"]) == [JoinResult.JOINED] * 2
    assert process.broker.join_batch("b", ["x", "known"]) == [JoinResult.MEMBER] * 2


def seal(process: Process) -> None:
    for id in reversed(BATCHES):
        process.broker.seal_batch(id)
        assert not process.broker.seal_batch(id)


def cancel_parent(process: Process) -> None:
    assert process.broker.cancel_batch("parent")
    assert not process.broker.cancel_batch("parent")


def revive(process: Process) -> None:
    assert revive_member(process.harness, "a")


def discard(process: Process) -> None:
    assert discard_member(process.harness, "a") == [True]


def count(process: Process) -> None:
    process.broker.count_members("b", ["a", "c", "x"])
    assert process.broker.count_members("b", ["a", "c", "x"]) == 0


def cancel_by_id(process: Process) -> None:
    process.broker.cancel(["a", "c"])


def be_buried(process: Process) -> None:
    expire_leases(process.harness)
    [suspect] = process.broker.suspects()
    settlement = followed(burial(suspect.claims[0], died=True))
    assert process.broker.reap(suspect.slot, [settlement]) == (SettleResult.DONE,)


def followed(settlement: Settlement) -> Settlement:
    follow_up = FollowUp(a_job("a.0", batch_id="b", parent_id="a"), JOB_QUEUE, joins=True)
    return replace(settlement, follow_ups=(follow_up,))


def complete_and_follow(claim: Claim) -> Settlement:
    return followed(complete(claim))


def work(process: Process) -> None:
    claim_job(process)
    settle_by(complete)(process)


SEQUENCES: dict[str, list[Step]] = {
    "run to its end": [start, create_both, add_two, seal, work, work, work, work, leave],
    "follow-ups that join": [start, create_both, add_two, claim_job, seal, settle_by(complete_and_follow), work, work],
    "join": [start, create_both, join, claim_job, seal, renew, settle_by(complete), leave],
    "retry, cancel and die": [
        *(start, create_both, add_two, seal, claim_job, settle_by(failed), time_passes, promote, claim_job),
        *(settle_by(cancel), claim_job, settle_by(burial), count),
    ],
    "die, revive and complete": [start, create_both, add_two, claim_job, settle_by(burial), revive, work],
    "die and be deleted": [start, create_both, add_two, seal, claim_job, settle_by(burial), discard, cancel_by_id],
    "be buried by a reaper": [start, create_both, add_two, seal, claim_job, be_buried, start, cancel_by_id, count],
    "cancel a parent": [
        *(start, create_both, add_two, claim_job, cancel_parent, renew, settle_by(cancel), claim_job),
        *(settle_by(cancel), count),
    ],
    "cancel the members": [start, create_both, add_two, cancel_by_id, count, seal],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_killed_between_any_two_calls_every_promise_about_batches_holds(make_harness: MakeHarness, name: str) -> None:
    steps = SEQUENCES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        process = Process(harness)
        for step in steps[:cut]:
            step(process)
        recover(harness)
        message = f"killed before call {cut} of {name}"
        check_places(harness, message)
        check_batches(harness, message)
        finish_everything(harness)
        check_places(harness, message)
        check_batches(harness, message)
        for view in filter(None, harness.broker.batches_by_id(BATCHES)):
            assert view.state is BatchState.FINISHED, message
        assert drift(harness) == 0, message


def check_batches(harness: Harness, message: str) -> None:
    """The counts are those of the records. A callback that fired is a job, and no other is."""
    found = {id_of(raw) for _, raw in places(harness)}
    for id, view in zip(BATCHES, harness.broker.batches_by_id(BATCHES), strict=True):
        if view is None:
            continue
        records = [record_of(harness, one) for one in found if record_of(harness, one).batch == id]
        unfinished = {record.id for record in records if record.state.is_unfinished}
        assert unfinished_ids(harness, id) == unfinished, message
        assert batch_of(harness, id).waiting + view.running - len(unfinished) in (0, 1), message
        assert {kind.value for kind in view.fired} == {job.rpartition(".")[2] for job in callback_jobs(harness, id)}
        is_finished = view.state is BatchState.FINISHED
        assert (CallbackKind.FINALLY in view.fired) or not is_finished, message
        assert (CallbackKind.CATCH in view.fired) == bool(view.dead_id), message


def finish_everything(harness: Harness) -> None:
    """What other processes do: they seal, finish every job, and count what is left."""
    harness.advance(5)
    harness.broker.promote()
    for id in reversed(BATCHES):
        harness.broker.seal_batch(id)
    while sum(harness.broker.census().pending.values()):
        claim = claim_one(harness, "w2")
        assert settle(harness, cancel(claim) if claim.is_cancelled else complete(claim)) is SettleResult.DONE


# lost replies and two callers


VERBS: dict[str, Callable[[Any], Any]] = {
    "create": lambda broker: broker.create_batch(NewBatch("new", parent="parent")),
    "seal": lambda broker: broker.seal_batch("b"),
    "cancel": lambda broker: broker.cancel_batch("b"),
    "join": lambda broker: broker.join_batch("b", ["x"]) == [JoinResult.JOINED],
    "count": lambda broker: bool(broker.count_members("b", ["lost"])),
}


@pytest.mark.parametrize("verb", VERBS)
def test_of_two_callers_one_changes_something_and_a_repeat_nothing(harness: Harness, verb: str) -> None:
    create(harness, id="parent")
    create(harness, *EVERY_KIND, parent="parent")
    add(harness, "a", "lost")
    harness.remove_record("lost")
    enqueue(harness, "x")
    call = VERBS[verb]
    assert sorted(run_concurrently(*(partial(call, harness.another()) for _ in range(2)))) == [False, True]
    before = batch_snapshot(harness)
    assert not call(harness.broker)
    assert batch_snapshot(harness) == before


def batch_snapshot(harness: Harness) -> Any:
    views = harness.broker.batches_by_id(["parent", "b", "new"])
    return views, snapshot(harness, "a", "x", "lost", "b.finally")


def test_bytes_that_are_too_long_count_once_however_often_a_claim_buries_them(harness: Harness) -> None:
    """Bytes that are not a job lose their record when they are revived, so they are in no batch afterwards."""
    create(harness, CallbackKind.CATCH, CallbackKind.FINALLY, allow_failures=True)
    raw = b'{"id":"a","filepath":"' + b"x" * MAX_DECODED_BYTES + b'"}'
    id = raw_id(raw)
    harness.push_raw(JOB_QUEUE, raw)
    bury_by_claim(harness)
    assert harness.broker.join_batch("b", [id]) == [JoinResult.JOINED]
    harness.broker.seal_batch("b")
    for _ in range(2):
        assert counts(harness) == {"total": 1, "dead": 1}
        assert (batch_of(harness).state, batch_of(harness).dead_id) == (BatchState.FINISHED, id)
        [revived] = harness.broker.revive([Revival(raw, id, raw, "high")])
        assert revived.is_revived
        while raw not in raws_in(harness, "dead_letter"):
            bury_by_claim(harness)
    assert sorted(ids_in(harness, "completed")) == ["b.catch", "b.finally"]
    assert drift(harness) == 0


def bury_by_claim(harness: Harness) -> None:
    """The claim buries what is too long, or leaves that to its slot."""
    register(harness, "w1")
    reply = harness.broker.settle_and_claim([], ["w1"])
    for claim in reply.claims:
        make = burial if claim.job is None else complete
        assert settle(harness, make(claim)) is SettleResult.DONE
    harness.broker.deregister(["w1"])
