"""Schedules on Redis where a step takes two calls: what other processes do in between, and what a kill leaves."""

import threading
from collections.abc import Iterator

import pytest

from fileq.brokers.redis import schedules
from fileq.brokers.redis.scripts import script
from fileq.brokers.schedules import Fire, FireResult, Overlap, ScheduleState
from fileq.brokers.types import CLEAR_REACH, LeaseStatus
from fileq.core.job import State
from fileq.core.outcome import FollowUp
from fileq.testing.conformance.builders import a_job, claim_one, drift, enqueue, ids_in, names, record_of
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_store import Store, opened


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


@pytest.fixture
def proxy(redis_server) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


def a_fire(slot: int, overlap: Overlap = Overlap.ALLOW) -> Fire:
    entry = FollowUp(a_job(f"sched.{slot}"), "high", is_own=True)
    follow_ups = (FollowUp(a_job("told", parent_id="sched.1"), "high"),)
    return Fire("nightly", "r1", slot * 1000, (slot + 1) * 1000, entry, 0, overlap, follow_ups)


def test_a_pause_does_not_undo_a_slot_that_fires_meanwhile(store, proxy):
    store.broker.define_schedule("nightly", "r1", 1000)
    through = store.through(proxy.port)
    sha = script("update_schedule").sha.encode()
    hold = proxy.hold_when(lambda request: sha in request)
    answers = []
    pausing = threading.Thread(target=lambda: answers.append(through.pause_schedule("nightly")))
    pausing.start()
    hold.wait_caught()
    assert store.broker.fire(a_fire(1)) is FireResult.FIRED
    hold.release()
    pausing.join()
    assert answers == [True]
    assert store.broker.schedules()["nightly"] == ScheduleState("r1", 2000, 1000, "sched.1", True, 1)
    assert store.broker.promote().next_fire_ms is None


def last_job_is_far(store: Store) -> None:
    """The job of the first slot waits behind more jobs than `fire` looks at."""
    store.broker.define_schedule("nightly", "r1", 1000)
    enqueue(store, *names(CLEAR_REACH))
    store.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(a_job("sched.1"), "low", is_own=True)))


def test_a_last_job_far_from_the_front_of_its_queue_is_cancelled(store):
    last_job_is_far(store)
    assert store.broker.fire(a_fire(2, Overlap.CANCEL)) is FireResult.FIRED
    assert record_of(store, "sched.1").state is State.CANCELLED
    assert (ids_in(store, "cancelled"), ids_in(store, "high")) == (["sched.1"], ["sched.2", "told"])
    assert drift(store) == 0


def test_a_scheduler_killed_before_it_cancels_a_job_far_from_the_front_leaves_the_request(store, monkeypatch):
    last_job_is_far(store)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "cancel_by_id", die)
        with pytest.raises(KeyboardInterrupt):
            store.broker.fire(a_fire(2, Overlap.CANCEL))
    assert store.broker.fire(a_fire(2, Overlap.CANCEL)) is FireResult.STALE
    store.broker.clear("high", store.broker.peek("high", 10))
    for start in range(0, CLEAR_REACH, 500):
        assert store.broker.clear("low", store.broker.peek("low", 500)) == [True] * 500, start
    claim = claim_one(store)
    assert claim.id == "sched.1"
    assert [renewal.status for renewal in store.broker.renew([("w1", claim.raw)])] == [LeaseStatus.CANCEL]
    assert drift(store) == 0


def test_a_job_at_the_end_of_the_reach_is_cancelled_in_the_same_step(store, proxy):
    store.broker.define_schedule("nightly", "r1", 1000)
    enqueue(store, *names(CLEAR_REACH - 1))
    store.broker.fire(Fire("nightly", "r1", 1000, 2000, FollowUp(a_job("sched.1"), "low", is_own=True)))
    through = store.through(proxy.port)
    proxy.reset_counts()
    assert through.fire(a_fire(2, Overlap.CANCEL)) is FireResult.FIRED
    assert (proxy.round_trips, record_of(store, "sched.1").state) == (1, State.CANCELLED)
