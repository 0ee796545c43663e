"""Waiters: an idle pump sleeps until a job may be in a queue, no matter which client or program pushed it.

No test here measures time: a wait either ends by what it waits for, long before its limit, or there is nothing
that could end it and a short limit does.
"""

import select
from collections.abc import Sequence
from contextlib import closing
from threading import Thread
from time import monotonic

import pytest

from fileq.brokers.protocol import Waiter
from fileq.brokers.types import Revival
from fileq.core.settlement import release
from fileq.testing.conformance.builders import (
    an_entry,
    claims_of,
    dead,
    drift,
    enqueue,
    foreign,
    raws_in,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.harness import Harness

LONG_S = 30.0
SHORT_S = 0.05


def test_without_a_job_the_wait_times_out(harness: Harness, waiter: Waiter) -> None:
    waiter.arm()
    assert waiter.wait(SHORT_S) is False
    assert waiter.wait(0) is False


def test_a_job_enqueued_before_arming_wakes(harness: Harness, waiter: Waiter) -> None:
    """A job pushed between the last claim and arming must wake the waiter."""
    enqueue(harness, "a")
    waiter.arm()
    assert waiter.wait(LONG_S) is True


@pytest.mark.parametrize("queue", ["high", "low"])
def test_a_job_in_any_queue_wakes(harness: Harness, waiter: Waiter, queue: str) -> None:
    waiter.arm()
    enqueue(harness, "a", queue=queue)
    assert waiter.wait(LONG_S) is True


def test_a_job_wakes_a_waiter_that_already_waits(harness: Harness, waiter: Waiter) -> None:
    waiter.arm()
    woken: list[bool] = []
    thread = Thread(target=lambda: woken.append(waiter.wait(LONG_S)))
    thread.start()
    enqueue(harness, "a")
    thread.join()
    assert woken == [True]


def test_another_client_wakes_it(harness: Harness, waiter: Waiter) -> None:
    other = harness.another()
    waiter.arm()
    other.enqueue([an_entry("a")])
    assert waiter.wait(LONG_S) is True


def test_another_program_wakes_it(harness: Harness, waiter: Waiter) -> None:
    waiter.arm()
    harness.push_raw("high", foreign("a"))
    assert waiter.wait(LONG_S) is True


def test_a_promoted_job_wakes(harness: Harness, waiter: Waiter) -> None:
    enqueue(harness, "a", delay_ms=10)
    waiter.arm()
    assert waiter.wait(SHORT_S) is False
    harness.advance(1)
    harness.broker.promote()
    assert waiter.wait(LONG_S) is True


def test_a_released_job_wakes(harness: Harness, waiter: Waiter) -> None:
    claim = running(harness, "a")
    waiter.arm()
    settle(harness, release(claim))
    assert waiter.wait(LONG_S) is True


def test_the_job_of_a_slot_that_deregisters_wakes(harness: Harness, waiter: Waiter) -> None:
    running(harness, "a")
    waiter.arm()
    harness.broker.deregister(["w1"])
    assert waiter.wait(LONG_S) is True


def test_a_revived_job_wakes(harness: Harness, waiter: Waiter) -> None:
    raw = dead(harness, "a")
    waiter.arm()
    harness.broker.revive([Revival(raw, "a", foreign("a"), "low")])
    assert waiter.wait(LONG_S) is True


def test_a_paused_queue_does_not_wake(harness: Harness, waiter: Waiter) -> None:
    enqueue(harness, "a", queue="low")
    harness.broker.pause("low")
    waiter.arm()
    assert waiter.wait(SHORT_S) is False
    enqueue(harness, "b", queue="high")
    assert waiter.wait(LONG_S) is True


def test_the_end_of_a_pause_wakes(harness: Harness, waiter: Waiter) -> None:
    enqueue(harness, "a", queue="low")
    harness.broker.pause("low")
    waiter.arm()
    assert waiter.wait(SHORT_S) is False
    harness.broker.resume("low")
    assert waiter.wait(LONG_S) is True


def test_after_the_claim_it_waits_again(harness: Harness, waiter: Waiter) -> None:
    enqueue(harness, "a")
    waiter.arm()
    assert waiter.wait(LONG_S) is True
    assert len(claims_of(harness, "w1")) == 1
    waiter.arm()
    assert waiter.wait(SHORT_S) is False
    enqueue(harness, "b")
    assert waiter.wait(LONG_S) is True


def test_arming_often_is_the_same_as_once(harness: Harness, waiter: Waiter) -> None:
    for _ in range(20):
        assert waiter.arm() > 0
    assert waiter.wait(SHORT_S) is False
    enqueue(harness, "a")
    assert waiter.wait(LONG_S) is True


def test_waiting_moves_nothing(harness: Harness, waiter: Waiter) -> None:
    enqueue(harness, "a", "b", "c")
    before, order = snapshot(harness, "a", "b", "c"), raws_in(harness, "low")
    for _ in range(5):
        waiter.arm()
        assert waiter.wait(LONG_S) is True
    assert raws_in(harness, "low") == order
    assert snapshot(harness, "a", "b", "c") == before
    assert drift(harness) == 0


def test_the_descriptor_is_readable_when_there_may_be_work(harness: Harness, waiter: Waiter) -> None:
    waiter.arm()
    enqueue(harness, "a")
    assert select.select([waiter], [], [], LONG_S)[0] == [waiter]


def first_woken(waiters: Sequence[Waiter]) -> Waiter:
    """The first of these armed waiters that may have work."""
    end_s = monotonic() + LONG_S
    while monotonic() < end_s:
        for waiter in waiters:
            if waiter.wait(0.01):
                return waiter
    raise AssertionError("no waiter was woken")


def test_one_of_several_waiters_is_woken(harness: Harness, waiter: Waiter) -> None:
    with closing(harness.another().waiter()) as second:
        waiter.arm()
        second.arm()
        enqueue(harness, "a")
        assert first_woken([waiter, second])


def test_a_claim_that_leaves_jobs_behind_wakes_another_waiter(harness: Harness, waiter: Waiter) -> None:
    with closing(harness.another().waiter()) as second:
        waiter.arm()
        second.arm()
        enqueue(harness, "a", "b")
        woken = first_woken([waiter, second])
        other = second if woken is waiter else waiter
        register(harness, "w1")
        assert len(claims_of(harness, "w1")) == 1
        assert other.wait(LONG_S) is True


def test_the_other_waiter_is_woken_after_one_is_closed(harness: Harness, waiter: Waiter) -> None:
    """Its pump has no room for jobs any more."""
    first = harness.another().waiter()
    first.arm()
    waiter.arm()
    first.close()
    enqueue(harness, "a")
    assert waiter.wait(LONG_S) is True


def test_a_closed_waiter_does_not_stop_claims(harness: Harness) -> None:
    waiter = harness.broker.waiter()
    waiter.arm()
    waiter.close()
    enqueue(harness, "a")
    register(harness, "w1")
    assert len(harness.broker.settle_and_claim([], ["w1"]).claims) == 1
