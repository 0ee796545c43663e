"""realign: after a step of the clock back, no job waits longer than its own delay."""

from collections.abc import Callable

import pytest

from fileq.core.job import State
from fileq.core.settlement import complete, retry
from fileq.testing.conformance.builders import (
    UNDECODABLE,
    an_entry,
    claim_one,
    counter,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

HOUR_MS = 3_600_000


def step_back(harness: Harness, ms: int = HOUR_MS) -> None:
    """The wall clock of the store is set back. No time passes."""
    harness.clock.ms -= ms


def realign_all(harness: Harness, limit: int = 500) -> None:
    offset: int | None = 0
    while offset is not None:
        offset = harness.broker.realign(offset, limit)


def due_in_ms(harness: Harness, id: str) -> int:
    return record_of(harness, id).due_ms - harness.clock.ms


def enqueued_with_a_delay(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=2000)


def failed_once(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=2000))


def deferred_once(harness: Harness) -> None:
    settle(harness, deferred(running(harness, "a"), delay_ms=2000))


def reaped(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    died = [retry(claim, claim.raw, delay_ms=2000, error="died", died=True) for claim in suspect.claims]
    harness.broker.reap(suspect.slot, died)


DELAYS = (enqueued_with_a_delay, failed_once, deferred_once, reaped)


@pytest.mark.parametrize("wait", DELAYS)
def test_after_a_step_back_a_job_waits_for_its_own_delay(harness: Harness, wait: Callable[[Harness], None]) -> None:
    wait(harness)
    before = record_of(harness, "a")
    step_back(harness)
    assert harness.broker.realign() is None
    assert (due_in_ms(harness, "a"), record_of(harness, "a").state) == (2000, before.state)
    assert harness.broker.promote().next_due_ms == harness.clock.ms + 2000
    harness.clock.ms += 2000
    assert harness.broker.promote().count == 1
    assert places_of(harness, "a") == ["low"]
    settle(harness, complete(claim_one(harness)))
    assert (counter(harness, "completed"), drift(harness)) == (1, 0)


@pytest.mark.parametrize("wait", DELAYS)
def test_without_a_step_nothing_changes(harness: Harness, wait: Callable[[Harness], None]) -> None:
    wait(harness)
    before = snapshot(harness, "a")
    assert harness.broker.realign() is None
    harness.clock.ms += 1500
    assert harness.broker.realign() is None
    step_back(harness, 1500 + 1000)
    assert harness.broker.realign() is None, "a second is within the tolerance"
    assert snapshot(harness, "a") == before
    assert due_in_ms(harness, "a") == 3000


def test_the_same_call_twice_changes_a_job_once(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=2000)
    step_back(harness)
    harness.broker.realign()
    before = snapshot(harness, "a")
    harness.clock.ms += 500
    harness.broker.realign()
    assert snapshot(harness, "a") == before
    assert due_in_ms(harness, "a") == 1500


def test_a_second_step_is_noticed_like_the_first(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=2000)
    for _ in range(2):
        step_back(harness)
        harness.broker.realign()
        assert due_in_ms(harness, "a") == 2000


def test_a_job_that_was_enqueued_for_a_time_keeps_it(harness: Harness) -> None:
    at_ms = harness.clock.ms + 60_000
    harness.broker.enqueue([an_entry("a", at_ms=at_ms), an_entry("b", at_ms=at_ms, delay_ms=1000)])
    step_back(harness)
    harness.broker.realign()
    assert [record_of(harness, id).due_ms for id in "ab"] == [at_ms, at_ms]
    assert ids_in(harness, "scheduled") == ["a", "b"]


def test_a_delay_that_ends_after_the_time_is_a_delay(harness: Harness) -> None:
    enqueue(harness, "a", at_ms=harness.clock.ms + 1000, delay_ms=2000)
    step_back(harness)
    harness.broker.realign()
    assert due_in_ms(harness, "a") == 2000


def test_jobs_that_were_scheduled_after_the_step_keep_their_time(harness: Harness) -> None:
    enqueue(harness, "before", delay_ms=5000)
    step_back(harness)
    enqueue(harness, "after", delay_ms=60_000)
    realign_all(harness)
    assert ids_in(harness, "scheduled") == ["before", "after"]
    assert (due_in_ms(harness, "before"), due_in_ms(harness, "after")) == (5000, 60_000)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_reach_every_job(harness: Harness, limit: int) -> None:
    ids = names(10)
    harness.broker.enqueue([an_entry(id, delay_ms=1000 * (i + 1)) for i, id in enumerate(ids)])
    at_ms = harness.clock.ms + 3500
    harness.broker.enqueue([an_entry(f"at-{i}", at_ms=at_ms + i) for i in range(3)])
    step_back(harness)
    realign_all(harness, limit)
    assert [due_in_ms(harness, id) for id in ids] == [1000 * (i + 1) for i in range(10)]
    assert [record_of(harness, f"at-{i}").due_ms for i in range(3)] == [at_ms + i for i in range(3)]


def test_pages_reach_every_job_while_others_are_promoted(harness: Harness) -> None:
    ids = names(20)
    harness.broker.enqueue([an_entry(id, delay_ms=(i + 1)) for i, id in enumerate(ids)])
    step_back(harness)
    offset: int | None = 0
    while offset is not None:
        offset = harness.broker.realign(offset, 3)
        harness.clock.ms += 10
        harness.broker.promote()
    harness.clock.ms += 20
    harness.broker.promote()
    assert sorted(ids_in(harness, "low")) == ids
    assert drift(harness) == 0


def test_an_empty_page_is_the_end(harness: Harness) -> None:
    assert harness.broker.realign() is None
    assert harness.broker.realign(500, 500) is None
    enqueue(harness, "a", delay_ms=1000)
    assert harness.broker.realign(0, 1) == 1
    assert harness.broker.realign(1, 1) is None


def test_what_another_program_scheduled_stays(harness: Harness) -> None:
    due_ms = harness.clock.ms + 5000
    raws = [foreign("a"), UNDECODABLE["text"], UNDECODABLE["nothing"]]
    for raw in raws:
        harness.schedule_raw(raw, due_ms)
    step_back(harness)
    realign_all(harness, 2)
    assert sorted(raws_in(harness, "scheduled")) == sorted(raws)
    assert harness.broker.promote().next_due_ms == due_ms


def test_a_job_that_is_no_longer_scheduled_stays_where_it_is(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1000)
    harness.broker.due_now(["a"])
    step_back(harness)
    before = snapshot(harness, "a")
    harness.broker.realign()
    assert snapshot(harness, "a") == before
    assert record_of(harness, "a").state is State.PENDING


def test_two_callers_at_the_same_time_change_each_job_once(harness: Harness) -> None:
    harness.broker.enqueue([an_entry(id, delay_ms=2000) for id in names(50)])
    step_back(harness)
    other = harness.another()
    run_concurrently(lambda: [harness.broker.realign(0, 7) for _ in range(9)], lambda: other.realign(0, 50))
    realign_all(harness)
    assert {due_in_ms(harness, id) for id in names(50)} == {2000}
    assert len(ids_in(harness, "scheduled")) == 50
