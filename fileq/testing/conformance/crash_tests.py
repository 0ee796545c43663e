"""A process killed between any two of its broker calls: every job is in exactly one place, and none is lost.

Each life below is the list of calls that some process makes. It is played up to every point in turn, and there
the process is gone: nobody calls for it any more. Then its lease runs out, a reaper comes by, and the books are read.
"""

from collections.abc import Callable
from typing import Any

import pytest

from fileq.brokers.types import Entry, Revival
from fileq.core.claim import Claim
from fileq.core.job import State, Version, encode
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


class Life:
    """One process and what it remembers between its calls."""

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


Step = Callable[[Life], Any]


def start(life: Life) -> None:
    life.broker.register({"w1": worker_info()})


def produce(life: Life) -> None:
    life.broker.enqueue([an_entry("a", version=Version(b"/data/a", "v1"))], limit=100)


def produce_later(life: Life) -> None:
    life.broker.enqueue([an_entry("a", delay_ms=500)])


def push(life: Life) -> None:
    life.harness.push_raw("low", foreign("a"))


def push_garbage(life: Life) -> None:
    life.harness.push_raw("low", UNDECODABLE["not UTF-8"])


def take(life: Life) -> None:
    life.settle_and_claim()


def renew(life: Life) -> None:
    life.broker.renew([("w1", life.claim.raw)])


def time_passes(life: Life) -> None:
    life.harness.advance(1)


def promote(life: Life) -> None:
    life.broker.promote()


def settle_by(settlement: Callable[[Claim], Any]) -> Step:
    return lambda life: life.settle_and_claim(settlement(life.claim), slots=())


def settle_and_take(settlement: Callable[[Claim], Any]) -> Step:
    return lambda life: life.settle_and_claim(settlement(life.claim))


def cancel_by_id(life: Life) -> None:
    life.broker.cancel(["a"])


def leave(life: Life) -> None:
    life.broker.deregister(["w1"])


def revive(life: Life) -> None:
    [raw] = raws_in(life.harness, "dead_letter")
    id = id_of(raw)
    life.broker.revive([Revival(raw, id, encode(a_job("a")) if id == "a" else raw, "low")])


def discard(life: Life) -> None:
    [raw] = raws_in(life.harness, "dead_letter")
    life.broker.discard([(id_of(raw), raw)])


LIVES: dict[str, list[Step]] = {
    "complete": [start, produce, take, renew, settle_by(complete), leave],
    "complete and go on": [start, produce, take, settle_and_take(complete), leave],
    "delayed": [start, produce_later, time_passes, promote, take, settle_by(complete), leave],
    "retry": [
        *(start, produce, take, settle_and_take(failed), time_passes, promote, take, renew),
        *(settle_and_take(failed), time_passes, promote, take, settle_by(complete), leave),
    ],
    "bury and revive": [start, produce, take, settle_by(burial), revive, take, settle_by(complete), leave],
    "bury and discard": [start, produce, take, settle_by(burial), discard, leave],
    "release": [start, produce, take, settle_by(release), take, settle_and_take(release), leave],
    "leave with a job": [start, produce, take, leave, start, take, settle_by(complete)],
    "cancel while it waits": [start, produce, cancel_by_id, take, leave],
    "cancel while it is scheduled": [start, produce_later, cancel_by_id, time_passes, promote, take, leave],
    "cancel while it runs": [start, produce, take, cancel_by_id, renew, settle_by(cancel), leave],
    "cancel while it waits for its retry": [start, produce, take, settle_by(failed), cancel_by_id, promote, leave],
    "foreign": [
        *(start, push, take, renew, settle_by(failed), time_passes, promote, take, settle_by(burial)),
        *(revive, take, settle_by(complete), leave),
    ],
    "garbage": [start, push_garbage, take, renew, settle_by(release), take, settle_by(burial), revive, take],
    "garbage, buried and discarded": [start, push_garbage, take, settle_by(burial), discard, leave],
}
# Where the job may be once everybody is gone and the reaper was there; it is never being processed.
RESTING = {"high", "low", "scheduled", "completed", "cancelled", "dead_letter"}


def recover(harness: Harness) -> None:
    """What the others do once the process is gone."""
    expire_leases(harness)
    reap_all(harness, broker=harness.another())


@pytest.mark.parametrize("name", LIVES)
def test_killed_between_any_two_calls_a_job_is_in_exactly_one_place(make_harness: MakeHarness, name: str) -> None:
    steps = LIVES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        life = Life(harness)
        for step in steps[:cut]:
            step(life)
        expected = is_there(steps[:cut])
        recover(harness)
        found = list(places(harness))
        said = f"killed before call {cut} ({[getattr(s, '__name__', '?') for s in steps[:cut]]})"
        assert len(found) == expected, said
        assert {place for place, _ in found} <= RESTING, said
        assert harness.broker.workers() == [], said
        assert drift(harness) == -strangers(harness), said


def is_there(steps: list[Step]) -> int:
    """1 once a job came in, 0 before and after it was deleted."""
    came = any(step in (produce, produce_later, push, push_garbage) for step in steps)
    return int(came and discard not in steps)


def strangers(harness: Harness) -> int:
    """Elements that nobody has claimed yet, or that were given back and can't be told from such."""
    return sum(
        1
        for queue in harness.config.worker.priorities
        for raw in raws_in(harness, queue)
        if not has_record(harness, id_of(raw))
    )


@pytest.mark.parametrize("name", LIVES)
def test_killed_between_any_two_calls_another_worker_finishes_the_job(make_harness: MakeHarness, name: str) -> None:
    """Unless it had ended: cancelled, discarded or dead is an end, and an operator's business."""
    steps = LIVES[name]
    for cut in range(len(steps) + 1):
        harness = make_harness()
        life = Life(harness)
        for step in steps[:cut]:
            step(life)
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


@pytest.mark.parametrize("end", [complete, failed, burial, release, cancel], ids=lambda end: end.__name__)
def test_killed_after_the_call_and_before_its_reply(harness: Harness, end: MakeSettlement) -> None:
    """The caller never learns that it was done. Its successor finds the job where the settlement put it."""
    enqueue(harness, "a", "b")
    life = Life(harness)
    start(life)
    take(life)
    settle_and_take(end)(life)
    recover(harness)
    assert len(places_of(harness, "a")) == 1
    assert len(places_of(harness, "b")) == 1
    assert harness.broker.workers() == []
    assert drift(harness) == 0


def test_a_reaper_killed_between_look_and_reap_has_done_nothing(harness: Harness) -> None:
    enqueue(harness, "a")
    claims_of(harness, "w1")
    expire_leases(harness)
    assert len(harness.another().suspects()) == 1
    assert places_of(harness, "a") == ["processing:w1"]
    assert reap_all(harness) == [SettleResult.DONE]
    assert places_of(harness, "a") == ["low"]
    assert drift(harness) == 0


def test_a_producer_killed_after_counting_its_permit_has_enqueued(harness: Harness) -> None:
    """Permit, ledger, record and queue are one step: there is no point at which it could die in between."""
    entry = Entry(a_job("a"), "low", Version(b"/data/a", "v1"))
    harness.broker.enqueue([entry], limit=1)
    assert places_of(harness, "a") == ["low"]
    assert record_of(harness, "a").state is State.PENDING
    assert ledger_entry(harness, b"/data/a").versions == (("v1", "a"),)
    assert counter(harness, "produced") == 1


def test_everybody_dies_at_once_and_comes_back(harness: Harness) -> None:
    """Twenty slots of two processes, killed in the middle of everything; two reapers find all of it."""
    enqueue(harness, *(f"job-{i}" for i in range(40)))
    claims = claims_of(harness, *(f"w{i}" for i in range(20)))
    ends: list[MakeSettlement] = [complete, failed, burial, release, cancel]
    harness.broker.settle_and_claim(
        [ends[i % 5](claim) for i, claim in enumerate(claims[:10])], [c.slot for c in claims[:5]]
    )
    dead(harness, "x")
    expire_leases(harness)
    other = harness.another()
    run_concurrently(lambda: reap_all(harness), lambda: reap_all(harness, broker=other))
    for id in (*(f"job-{i}" for i in range(40)), "x"):
        assert len(places_of(harness, id)) == 1, id
    assert harness.broker.census().running == 0
    assert drift(harness) == 0
