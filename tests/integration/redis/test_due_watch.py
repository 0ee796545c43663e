"""That an idle scheduler does not ask the server again and again, and learns of an earlier job all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fileq.brokers.redis import RedisBroker
from fileq.testing.conformance.builders import an_entry
from fileq.worker.scheduler import LONGEST_PAUSE_S, LONGEST_WATCHED_PAUSE_S, Scheduler
from tests.integration.redis.test_permissions import LOGIN, PERMISSIONS
from tests.support.redis_store import Store
from tests.support.servers import Server
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000


class Watched:
    """A scheduler that has made two turns: the second is the first that comes soon after another."""

    def __init__(self, store: Store) -> None:
        self.broker: RedisBroker = store.another()
        self.scheduler = Scheduler(self.broker)
        self.scheduler.turn()
        self.pause_s = self.scheduler.turn()

    def wait_woken(self) -> None:
        assert self.scheduler.wake.wait(10), "no change was reported"


@pytest.fixture
def store(redis_server: Server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


def add(store: Store, id: str, delay_ms: int) -> None:
    store.broker.enqueue([an_entry(id, delay_ms=delay_ms)])


def asked(store: Store) -> int:
    return int(store.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_an_idle_scheduler_sleeps_until_another_process_schedules_a_job(store: Store) -> None:
    watched = Watched(store)
    assert watched.pause_s == LONGEST_WATCHED_PAUSE_S
    add(store, "far", HOUR_MS)
    watched.wait_woken()
    assert watched.scheduler.turn() == LONGEST_WATCHED_PAUSE_S
    add(store, "near", 300)
    watched.wait_woken()
    assert watched.scheduler.turn() <= 0.3
    wait_until(lambda: watched.scheduler.turn() == LONGEST_WATCHED_PAUSE_S, what="the job is promoted")
    assert len(store.broker.peek("low", 10)) == 1


def test_nothing_is_reported_without_a_change(store: Store) -> None:
    watched = Watched(store)
    watched.scheduler.turn()  # asks on a connection that is being watched already
    before = asked(store)
    assert not watched.scheduler.wake.wait(0.2), "the replies to its own questions are no report"
    assert asked(store) == before


def test_a_new_schedule_is_reported(store: Store) -> None:
    watched = Watched(store)
    store.broker.define_schedule("nightly", "1", 3000)
    watched.wait_woken()
    assert watched.broker.promote().next_fire_ms == 3000


def test_a_lost_connection_wakes_the_scheduler_and_is_replaced(store: Store) -> None:
    watched = Watched(store)
    store.client.client_kill_filter(_type="normal", skipme=True)
    watched.wait_woken()
    wait_until(lambda: watched.scheduler.turn() == LONGEST_WATCHED_PAUSE_S, what="it is watched again")
    add(store, "near", 20)
    watched.wait_woken()


def test_a_server_that_refuses_to_report_is_asked_often(redis_server: Server) -> None:
    redis_server.add_user("fileq", "pass", *PERMISSIONS)
    with Store(redis_server, **LOGIN) as store:
        watched = Watched(store)
        assert watched.pause_s == LONGEST_PAUSE_S
        add(store, "near", 1)
        wait_until(lambda: len(store.broker.peek("low", 10)) == 1 or not watched.scheduler.turn(), what="promoted")
        refusals = [entry for entry in store.client.acl_log() if entry["object"] == "client|tracking"]
        assert [entry["count"] for entry in refusals] == [1], "it tries once, not at every turn"
