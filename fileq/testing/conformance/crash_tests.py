"""A process killed between any two of its broker calls: every job is in exactly one place, and none is lost.

Each sequence below lists the calls that a process makes. The test stops it before each call in turn, as a kill -9
would. Then the lease expires, a reaper runs, and the test checks the place of the job and the drift.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.types import AdmitRequest, AdmitResult, Entry, Revival
from fileq.core.job import DELAYED_STATES, Claim, State, Version, encode
from fileq.core.settlement import SettleResult, cancel, complete, release
from fileq.testing.conformance.builders import (
    UNDECODABLE,
    MakeSettlement,
    a_job,
    an_entry,
    burial,
    claims_of,
    counter,
    dead,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    has_record,
    id_of,
    ledger_entry,
    places,
    places_of,
    raws_in,
    reap_all,
    record_of,
    register,
    worker_info,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness


class Process:
    """One process and what it keeps between its calls."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.broker = harness.broker
        self.claims: dict[str, Claim] = {}

    def settle_and_claim(self, *settlements: Any, slots: tuple[str, ...] = ("w1",)) -> None:
        answer = self.broker.settle_and_claim(list(settlements), slots)
        assert all(settled is SettleResult.DONE for settled in answer.settled)
        self.claims |= {claim.slot: claim for claim in answer.claims}

    @property
    def claim(self) -> Claim:
        return self.claims["w1"]


Step = Callable[[Process], Any]


def start(process: Process) -> None:
    process.broker.register({"w1": worker_info()})


def produce(process: Process) -> None:
    process.broker.enqueue([an_entry("a", version=Version(b"/data/a", "v1"))], limit=100)


def produce_later(process: Process) -> None:
    process.broker.enqueue([an_entry("a", delay_ms=500)])


def push(process: Process) -> None:
    process.harness.push_raw("low", foreign("a"))


def push_garbage(process: Process) -> None:
    process.harness.push_raw("low", UNDECODABLE["not UTF-8"])


def claim_job(process: Process) -> None:
    process.settle_and_claim()


def renew(process: Process) -> None:
    process.broker.renew([("w1", process.claim.raw)])


def admit(process: Process) -> None:
    request = AdmitRequest("mail", "w1", process.claim.raw, max_running_total=1, rate=100)
    assert [answer.result for answer in process.broker.admit([request])] == [AdmitResult.ADMITTED]


def time_passes(process: Process) -> None:
    process.harness.advance(1)


def promote(process: Process) -> None:
    process.broker.promote()


def realign(process: Process) -> None:
    """The clock has stepped back."""
    process.harness.clock.ms -= 3_600_000
    process.broker.realign()
    process.harness.clock.ms += 3_600_000


def make_due(process: Process) -> None:
    process.broker.due_now(["a"])


def settle_by(settlement: Callable[[Claim], Any]) -> Step:
    return lambda process: process.settle_and_claim(settlement(process.claim), slots=())


def settle_and_claim_next(settlement: Callable[[Claim], Any]) -> Step:
    return lambda process: process.settle_and_claim(settlement(process.claim))


def with_order(claim: Claim) -> Any:
    return replace(complete(claim), order=b"complete 1-2\n/data/a")


def be_buried(process: Process) -> None:
    """The slot died for the last time: a reaper buries its job, with an order for the file."""
    expire_leases(process.harness)
    [suspect] = process.broker.suspects()
    [claim] = suspect.claims
    settlement = replace(burial(claim, died=True), order=b"bury 1-2\n/data/a")
    assert process.broker.reap(suspect.slot, [settlement]) == (SettleResult.DONE,)


def cancel_by_id(process: Process) -> None:
    process.broker.cancel(["a"])


def leave(process: Process) -> None:
    process.broker.deregister(["w1"])


def revive(process: Process) -> None:
    [raw] = raws_in(process.harness, "dead_letter")
    id = id_of(raw)
    process.broker.revive([Revival(raw, id, encode(a_job("a")) if id == "a" else raw, "low")])


def discard(process: Process) -> None:
    [raw] = raws_in(process.harness, "dead_letter")
    process.broker.discard([(id_of(raw), raw)])


def move_file(process: Process) -> None:
    """What a worker reports after it moved the file of an ended job."""
    assert process.broker.finish_orders([("a", b"/moved/a")]) == [True]


SEQUENCES: dict[str, list[Step]] = {
    "complete": [start, produce, claim_job, renew, settle_by(complete), leave],
    "complete and move its file": [start, produce, claim_job, settle_by(complete), move_file, leave],
    "bury, move its file and revive": [
        *(start, produce, claim_job, settle_by(burial), move_file, revive, claim_job, settle_by(complete), move_file),
        leave,
    ],
    "complete and go on": [start, produce, claim_job, settle_and_claim_next(complete), leave],
    "complete and move": [start, produce, claim_job, settle_and_claim_next(with_order), move_file, leave],
    "be buried by a reaper and move": [
        *(start, produce, claim_job, be_buried, move_file, start, revive, claim_job, be_buried, discard),
    ],
    "of a limited route": [
        *(start, produce, claim_job, admit, settle_by(failed), time_passes, promote, claim_job, admit, renew),
        *(settle_by(complete), leave),
    ],
    "delayed": [start, produce_later, realign, time_passes, promote, claim_job, settle_by(complete), leave],
    "retry": [
        *(start, produce, claim_job, settle_and_claim_next(failed), realign, time_passes, promote, claim_job, renew),
        *(settle_and_claim_next(failed), time_passes, promote, claim_job, settle_by(complete), leave),
    ],
    "defer": [
        *(start, produce, claim_job, settle_and_claim_next(deferred), time_passes, promote, claim_job, renew),
        *(settle_by(deferred), make_due, claim_job, settle_by(complete), leave),
    ],
    "due before its time": [start, produce_later, make_due, claim_job, settle_by(complete), leave],
    "cancel while it is deferred": [start, produce, claim_job, settle_by(deferred), cancel_by_id, make_due, leave],
    "bury and revive": [start, produce, claim_job, settle_by(burial), revive, claim_job, settle_by(complete), leave],
    "bury and discard": [start, produce, claim_job, settle_by(burial), discard, leave],
    "release": [start, produce, claim_job, settle_by(release), claim_job, settle_and_claim_next(release), leave],
    "leave with a job": [start, produce, claim_job, leave, start, claim_job, settle_by(complete)],
    "cancel while it waits": [start, produce, cancel_by_id, claim_job, leave],
    "cancel while it is scheduled": [start, produce_later, cancel_by_id, time_passes, promote, claim_job, leave],
    "cancel while it runs": [start, produce, claim_job, cancel_by_id, renew, settle_by(cancel), leave],
    "cancel while it waits for its retry": [start, produce, claim_job, settle_by(failed), cancel_by_id, promote, leave],
    "foreign": [
        *(start, push, claim_job, renew, settle_by(failed), time_passes, promote, claim_job, settle_by(burial)),
        *(revive, claim_job, settle_by(complete), leave),
    ],
    "garbage": [
        start,
        push_garbage,
        claim_job,
        renew,
        settle_by(release),
        claim_job,
        settle_by(burial),
        revive,
        claim_job,
    ],
    "garbage, buried and discarded": [start, push_garbage, claim_job, settle_by(burial), discard, leave],
}
# The states that the record of a job may have, by its place.
STATES = {
    "scheduled": DELAYED_STATES,
    "completed": (State.COMPLETED,),
    "cancelled": (State.CANCELLED,),
    "dead_letter": (State.DEAD,),
}
# The places where the job may be after the process died and a reaper ran: never `processing`.
RESTING = {"high", "low", "scheduled", "completed", "cancelled", "dead_letter"}


def recover(harness: Harness) -> None:
    """What other processes do after the death of the process."""
    expire_leases(harness)
    reap_all(harness, broker=harness.another())


@pytest.mark.parametrize("name", SEQUENCES)
def test_killed_between_any_two_calls_a_job_is_in_exactly_one_place(make_harness: MakeHarness, name: str) -> None:
    steps = SEQUENCES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        process = Process(harness)
        for step in steps[:cut]:
            step(process)
        expected = is_there(steps[:cut])
        recover(harness)
        found = list(places(harness))
        message = f"killed before call {cut} ({[getattr(s, '__name__', '?') for s in steps[:cut]]})"
        assert len(found) == expected, message
        assert {place for place, _ in found} <= RESTING, message
        for place, raw in found:
            if place in STATES:
                assert record_of(harness, id_of(raw)).state in STATES[place], message
        assert harness.broker.workers() == [], message
        assert drift(harness) == -jobs_without_record(harness), message


def is_there(steps: list[Step]) -> int:
    """1 after a job was added, 0 before that and after its deletion."""
    came = any(step in (produce, produce_later, push, push_garbage) for step in steps)
    return int(came and discard not in steps)


def jobs_without_record(harness: Harness) -> int:
    """The number of jobs without a record: not claimed yet, or released without ever having one."""
    return sum(
        1
        for queue in harness.config.worker.priorities
        for raw in raws_in(harness, queue)
        if not has_record(harness, id_of(raw))
    )


@pytest.mark.parametrize("name", SEQUENCES)
def test_killed_between_any_two_calls_another_worker_finishes_the_job(make_harness: MakeHarness, name: str) -> None:
    """Unless it has ended: cancelled and dead jobs wait for an operator."""
    steps = SEQUENCES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        process = Process(harness)
        for step in steps[:cut]:
            step(process)
        recover(harness)
        harness.advance(5)
        harness.broker.promote()
        register(harness, "w2")
        for _ in range(3):
            for claim in harness.broker.settle_and_claim([], ["w2"]).claims:
                end = complete if claim.job is not None else burial
                assert harness.broker.settle_and_claim([end(claim)], []).settled == (SettleResult.DONE,)
        assert {place for place, _ in places(harness)} <= {"completed", "cancelled", "dead_letter"}
        assert drift(harness) == 0


@pytest.mark.parametrize("end", [complete, failed, burial, release, cancel, deferred], ids=lambda end: end.__name__)
def test_killed_after_the_call_and_before_its_reply(harness: Harness, end: MakeSettlement) -> None:
    """The caller never gets the reply. The next process finds the job where the settlement put it."""
    enqueue(harness, "a", "b")
    process = Process(harness)
    start(process)
    claim_job(process)
    settle_and_claim_next(end)(process)
    recover(harness)
    assert len(places_of(harness, "a")) == 1
    assert len(places_of(harness, "b")) == 1
    assert harness.broker.workers() == []
    assert drift(harness) == 0


def test_a_reaper_killed_between_suspects_and_reap_has_done_nothing(harness: Harness) -> None:
    enqueue(harness, "a")
    claims_of(harness, "w1")
    expire_leases(harness)
    assert len(harness.another().suspects()) == 1
    assert places_of(harness, "a") == ["processing:w1"]
    assert reap_all(harness) == [SettleResult.DONE]
    assert places_of(harness, "a") == ["low"]
    assert drift(harness) == 0


def test_a_producer_killed_after_counting_its_permit_has_enqueued(harness: Harness) -> None:
    """Permit, ledger, record and queue are one step: no crash can come between them."""
    entry = Entry(a_job("a"), "low", Version(b"/data/a", "v1"))
    harness.broker.enqueue([entry], limit=1)
    assert places_of(harness, "a") == ["low"]
    assert record_of(harness, "a").state is State.PENDING
    assert ledger_entry(harness, b"/data/a").versions == (("v1", "a"),)
    assert counter(harness, "produced") == 1


def test_every_slot_dies_at_the_same_time_and_every_job_is_recovered(harness: Harness) -> None:
    """Twenty slots of two processes, killed while they work; two reapers recover every job."""
    enqueue(harness, *(f"job-{i}" for i in range(40)))
    claims = claims_of(harness, *(f"w{i}" for i in range(20)))
    ends: list[MakeSettlement] = [complete, failed, burial, release, cancel, deferred]
    harness.broker.settle_and_claim(
        [ends[i % 6](claim) for i, claim in enumerate(claims[:10])], [c.slot for c in claims[:5]]
    )
    dead(harness, "x")
    expire_leases(harness)
    other = harness.another()
    run_concurrently(lambda: reap_all(harness), lambda: reap_all(harness, broker=other))
    for id in (*(f"job-{i}" for i in range(40)), "x"):
        assert len(places_of(harness, id)) == 1, id
    assert harness.broker.census().running == 0
    assert drift(harness) == 0
