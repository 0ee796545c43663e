"""A server that cannot serve now: the broker is unavailable. That is never a refusal and never a failure of a job.
Nothing has changed, and the same broker works again as soon as the server does."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from fileq.brokers.redis import open_redis
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import enqueue, ids_in, register, running, settle
from fileq.testing.conformance.harness import FakeClock
from tests.support.redis_calls import CALLS
from tests.support.redis_outages import AWAY, SOME_CALLS, is_enqueued, locked
from tests.support.redis_store import QUICK, Store, config_on, dump
from tests.support.servers import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server, clock=FakeClock()) as store:
        yield store


@pytest.mark.parametrize("how", AWAY)
def test_a_server_that_cannot_serve_now_is_unavailable_and_nothing_changes(store, how):
    away, words = AWAY[how]
    claim = running(store, "a")
    enqueue(store, "b", "c")
    register(store, "w2")
    before = dump(store.client)
    with away(store):
        for call in SOME_CALLS.values():
            with pytest.raises(BrokerUnavailable, match=f"(?i)is unavailable: .*({words})"):
                call(store, claim)
    assert dump(store.client) == before
    assert settle(store, complete(claim)) is SettleResult.DONE
    assert [c.id for c in store.broker.settle_and_claim([], ["w1", "w2"]).claims] == ["b", "c"]


@pytest.mark.parametrize("how", ["READONLY", "MISCONF", "NOREPLICAS"])
def test_a_server_that_only_refuses_writes_can_be_inspected(store, how):
    away, _ = AWAY[how]
    running(store, "a")
    enqueue(store, "b")
    with away(store):
        assert store.broker.census().running == 1
        assert ids_in(store, "low") == ["b"]
        assert store.broker.records(["a"])[0].state == "running"


@pytest.mark.parametrize("how", ["MASTERDOWN", "BUSY", "LOADING", "NOAUTH", "max clients"])
def test_a_server_that_refuses_every_command_can_neither_be_inspected_nor_waited_for(store, how):
    away, _ = AWAY[how]
    with contextlib.closing(store.broker.waiter()) as waiter:
        with away(store):
            with pytest.raises(BrokerUnavailable, match="is unavailable"):
                store.broker.census()
            with contextlib.suppress(BrokerUnavailable):
                waiter.arm()
                assert waiter.wait(10) is True, "the claim that follows gets the reason"
        waiter.arm()
        enqueue(store, "a")
        assert waiter.wait(10) is True


def test_a_server_that_lost_its_scripts_gets_them_again(store):
    for subject in CALLS:
        if subject.name != "promote":  # it sets the clock
            call = subject.prepare(store)
            store.client.script_flush()
            call(store.broker)
            store.empty()


def test_a_server_that_hangs_is_unavailable_after_the_time_out(redis_server):
    with Store(redis_server, **QUICK) as store:
        enqueue(store, "a")
        redis_server.pause()
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="no answer within"):
            enqueue(store, "b")
        assert time.monotonic() - began < 5
        redis_server.resume()
        wait_until(lambda: is_enqueued(store, "c"))
        assert "a" in ids_in(store, "low")


def test_a_missing_password_is_reported_at_start(store):
    with locked(store), pytest.raises(BrokerUnavailable, match="is unavailable: NOAUTH Authentication required"):
        store.another()


def test_a_port_without_a_server_is_unavailable(redis_server):
    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        open_redis(config_on(**{"redis.addr": f"127.0.0.1:{free_port()}"}))


def test_an_address_that_does_not_resolve_is_unavailable():
    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        open_redis(config_on(**{"redis.addr": "nowhere.invalid:6379"}))
