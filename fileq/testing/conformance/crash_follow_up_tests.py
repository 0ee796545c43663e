"""A process killed between any two calls that make jobs: no follow-up without its job's end, no slot fired twice.

As in crash_tests, each sequence is stopped before each of its calls in turn; then a reaper runs.
"""

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import EnqueueResult, Entry, Revival
from fileq.core.job import Claim, State, encode
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import Settlement, SettleResult, cancel, complete
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    deferred,
    drift,
    expire_leases,
    failed,
    has_record,
    id_of,
    places,
    raws_in,
    record_of,
)
from fileq.testing.conformance.crash_tests import (
    RESTING,
    STATES,
    Process,
    Step,
    claim_job,
    leave,
    produce,
    produce_later,
    promote,
    recover,
    settle_by,
    start,
    time_passes,
)
from fileq.testing.conformance.harness import Harness, MakeHarness

KEY = "the one report"
FOLLOW_UP = FollowUp(a_job("a.0", parent_id="a", unique_key=KEY), "low")


def followed(end: Settlement) -> Settlement:
    outputs = (Output(b"/out/a", 1, "v1"),) if end.verb == "complete" else ()
    return replace(end, follow_ups=(FOLLOW_UP,), outputs=outputs)


def complete_and_follow(claim: Claim) -> Settlement:
    return followed(complete(claim))


def bury_and_follow(claim: Claim) -> Settlement:
    return followed(burial(claim))


def fail_and_follow(claim: Claim) -> Settlement:
    return followed(failed(claim))


def be_buried_and_follow(process: Process) -> None:
    expire_leases(process.harness)
    [suspect] = process.broker.suspects()
    settlement = followed(burial(suspect.claims[0], died=True))
    assert process.broker.reap(suspect.slot, [settlement]) == (SettleResult.DONE,)


def revive(process: Process) -> None:
    [raw] = raws_in(process.harness, "dead_letter")
    process.broker.revive([Revival(raw, "a", encode(a_job("a")), "low")])


def cancel_and_follow(process: Process) -> None:
    process.broker.cancel(["a"], {"a": [FOLLOW_UP]})


def clear_and_follow(process: Process) -> None:
    process.broker.clear("low", process.broker.peek("low", 500), {"a": [FOLLOW_UP]})


def produce_unique(process: Process) -> None:
    entries = [Entry(a_job(id, unique_key=KEY), "low") for id in ("a", "b")]
    results = process.broker.enqueue(entries).results
    assert results[1] is EnqueueResult.DUPLICATE


def sweep(process: Process) -> None:
    process.broker.sweep_unique()


def define(process: Process) -> None:
    process.broker.define_schedule("nightly", "r1", 1000)


def fire(process: Process, overlap: Overlap = Overlap.ALLOW) -> None:
    """Fires the next slot; a repeat, as after a lost reply, is stale."""
    slot = process.broker.schedules()["nightly"].next_ms
    entry = FollowUp(a_job(f"sched.{slot}"), "low", is_own=True)
    wanted = Fire("nightly", "r1", slot, slot + 1000, entry, overlap=overlap)
    assert process.broker.fire(wanted) in (FireResult.FIRED, FireResult.SKIPPED)
    assert process.broker.fire(wanted) is FireResult.STALE


def pause(process: Process) -> None:
    process.broker.pause_schedule("nightly")


def resume(process: Process) -> None:
    process.broker.resume_schedule("nightly", 50_000)


fire_or_skip = partial(fire, overlap=Overlap.SKIP)
fire_and_queue = partial(fire, overlap=Overlap.QUEUE)
fire_and_cancel = partial(fire, overlap=Overlap.CANCEL)

SEQUENCES: dict[str, list[Step]] = {
    "complete with a follow-up": [
        *(start, produce, claim_job, settle_by(complete_and_follow), claim_job, settle_by(complete), leave),
    ],
    "fail with a follow-up and complete with the same one": [
        *(start, produce, claim_job, settle_by(fail_and_follow), time_passes, promote, claim_job, settle_by(complete)),
        *(claim_job, settle_by(complete_and_follow), leave),
    ],
    "bury with a follow-up, revive and complete": [
        *(start, produce, claim_job, settle_by(bury_and_follow), claim_job, settle_by(complete), revive, claim_job),
        *(settle_by(complete_and_follow), leave),
    ],
    "be buried by a reaper with a follow-up": [
        *(start, produce, claim_job, be_buried_and_follow, start, claim_job, settle_by(complete), leave),
    ],
    "cancel with a follow-up": [start, produce_later, cancel_and_follow, claim_job, settle_by(complete), leave],
    "clear with a follow-up": [start, produce, clear_and_follow, claim_job, settle_by(complete), leave],
    "a key that the follow-up takes over": [
        *(start, produce_unique, sweep, claim_job, sweep, settle_by(complete_and_follow), sweep, produce_unique),
    ],
    "fire": [
        *(start, define, fire, claim_job, fire_or_skip, settle_by(complete), fire_or_skip, pause, resume, fire),
    ],
    "fire and queue": [
        *(start, define, fire, claim_job, fire_and_queue, settle_by(failed), claim_job, settle_by(deferred)),
        *(time_passes, promote, claim_job, settle_by(complete), leave),
    ],
    "fire and cancel": [
        *(start, define, fire, fire_and_cancel, claim_job, fire_and_cancel, settle_by(cancel), claim_job),
        *(settle_by(complete), leave),
    ],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_killed_between_any_two_calls_every_promise_about_made_jobs_holds(make_harness: MakeHarness, name: str) -> None:
    steps = SEQUENCES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        process = Process(harness)
        for step in steps[:cut]:
            step(process)
        recover(harness)
        message = f"killed before call {cut} of {name}"
        check_places(harness, message)
        check_follow_ups(harness, message)
        check_schedules(harness, message)
        assert drift(harness) == 0, message


def check_places(harness: Harness, message: str) -> None:
    """Every job that has a record is in one place, the one its record names."""
    found = list(places(harness))
    assert {place for place, _ in found} <= RESTING, message
    assert all(count == 1 for count in Counter(id_of(raw) for _, raw in found).values()), message
    for place, raw in found:
        state = record_of(harness, id_of(raw)).state
        assert state in STATES.get(place, (state,)), message
    ids = {id for page in harness.broker.ids() for id in page}
    assert ids == {id_of(raw) for _, raw in found}, message
    assert not any(harness.broker.lost(sorted(ids))), message


def check_follow_ups(harness: Harness, message: str) -> None:
    """The follow-up and its id in the record of its job: both or neither. The same for an output and its maker."""
    if has_record(harness, "a"):
        record = record_of(harness, "a")
        assert record.follow_ups == (("a.0",) if has_record(harness, "a.0") else ()), message
        assert harness.broker.makers([b"/out/a"]) == (["a"] if record.outputs else [None]), message
        if record.outputs:
            assert record.state is State.COMPLETED, message
    else:
        assert not has_record(harness, "a.0"), message
    unfinished = [id for id in ("a", "b", "a.0") if has_record(harness, id) and is_holder(harness, id)]
    assert len(unfinished) <= 1, message


def is_holder(harness: Harness, id: str) -> bool:
    record = record_of(harness, id)
    return record.unique_key == KEY and record.state.is_unfinished


def check_schedules(harness: Harness, message: str) -> None:
    """Each run of a schedule is a job, and the last one is named."""
    fired = sorted(id_of(raw) for _, raw in places(harness) if id_of(raw).startswith("sched."))
    for state in harness.broker.schedules().values():
        assert state.runs == len(fired), message
        assert state.last_job_id == (fired[-1] if fired else ""), message


@pytest.mark.parametrize("name", SEQUENCES)
def test_killed_between_any_two_calls_other_workers_finish_every_made_job(make_harness: MakeHarness, name: str) -> None:
    steps = SEQUENCES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        process = Process(harness)
        for step in steps[:cut]:
            step(process)
        recover(harness)
        harness.advance(5)
        harness.broker.promote()
        for _ in range(sum(harness.broker.census().pending.values())):
            claim = claim_one(harness, "w2")
            assert harness.broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
        assert {place for place, _ in places(harness)} <= {"completed", "cancelled", "dead_letter"}
        assert drift(harness) == 0
