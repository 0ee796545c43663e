"""A server killed by kill -9: what it acknowledged is there after its restart, and the same broker goes on."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import enqueue, failed, ids_in, raws_in, reap_all, running, settle
from tests.support.program import Program
from tests.support.redis_outages import SOME_CALLS, is_enqueued
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import Store, claimed, dump
from tests.support.servers import Server
from tests.support.waiting import wait_until


@pytest.fixture
def durable(redis_server) -> Iterator[Store]:
    """A server of the same kind that writes to disk before it replies."""
    with Server(redis_server.binary, aof=True) as server, Store(server) as store:
        yield store


def test_everything_acknowledged_survives_kill_9_and_the_same_broker_goes_on(durable):
    store = durable
    claim, other = claimed(store, "w1", "w2")
    enqueue(store, "waiting", queue="high")
    enqueue(store, "later", delay_ms=60_000)
    settle(store, failed(other, delay_ms=60_000))
    before = {key: value[:2] for key, value in dump(store.client).items()}

    store.server.kill()
    for call in SOME_CALLS.values():
        with pytest.raises(BrokerUnavailable, match="is unavailable"):
            call(store, claim)
    store.server.start()

    assert {key: value[:2] for key, value in dump(store.client).items()} == before
    assert [r.status for r in store.broker.renew([("w1", claim.raw)])] == ["held"]
    assert settle(store, complete(claim)) is SettleResult.DONE
    assert store.broker.settle_and_claim([], ["w1"]).claims[0].id == "waiting"
    assert store.broker.census().drift == 0


def test_jobs_enqueued_while_the_server_is_killed_are_there_or_were_not_acknowledged(durable):
    store = durable
    acknowledged: list[str] = []
    is_over = threading.Event()

    def produce() -> None:
        for n in range(100_000):
            if is_over.is_set():
                return
            if is_enqueued(store, f"job{n}"):
                acknowledged.append(f"job{n}")

    producer = threading.Thread(target=produce)
    producer.start()
    for goal in (100, 200):
        wait_until(lambda goal=goal: len(acknowledged) > goal, 30)
        os.kill(store.server.pid, 9)
        store.server.restart()
    wait_until(lambda: len(acknowledged) > 300, 30)
    is_over.set()
    producer.join()

    found = ids_in(store, "low")
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found)), "and none is there twice"
    assert store.broker.census().drift == 0


def test_after_a_server_lost_all_data_the_same_broker_goes_on(redis_server):
    """Without persistence a kill -9 loses the registry: the reply names the slots that are gone."""
    with Server(redis_server.binary) as server, Store(server) as store:
        claim = running(store, "a")
        server.restart(kill=True)
        store.client = server.client()
        reply = store.broker.settle_and_claim([complete(claim)], ["w1"])
        assert reply.settled == (SettleResult.FENCED,)
        assert reply.gone == ("w1",)
        use_every_method(store.broker, store.client)
        assert reap_all(store) == []
        assert raws_in(store, "low") == []


def test_a_server_that_lost_data_is_noticed_once(redis_server):
    with Server(redis_server.binary) as server, Store(server) as store:
        running(store, "a")
        enqueue(store, "b")
        assert store.broker.check_present() == ""
        server.restart(kill=True)
        enqueue(store, "c")
        assert "its count of jobs went back from 2 to 1;" in store.broker.check_present()
        assert store.broker.check_present() == ""


def test_a_server_that_kept_its_data_is_not_reported(durable):
    enqueue(durable, "a")
    assert durable.broker.check_present() == ""
    durable.server.restart(kill=True)
    enqueue(durable, "b")
    assert durable.broker.check_present() == ""


def has_checked(store: Store) -> bool:
    """Whether a process has asked how many jobs the server has counted; the slow log has every command."""
    return any(b"HMGET jobqueue:stats" in entry["command"] for entry in store.client.slowlog_get(1000))


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_process_reports_that_its_server_lost_data_and_goes_on(role: str, redis_server, tmp_path: Path):
    (tmp_path / "data").mkdir()
    with Server(redis_server.binary) as server, Store(server) as store:
        enqueue(store, "a", delay_ms=3_600_000)
        store.client.config_set("slowlog-log-slower-than", 0)
        with Program(role, cwd=tmp_path, settings={"redis.addr": server.address}) as program:
            wait_until(lambda: has_checked(store))
            server.restart(kill=True)
            lost = program.wait_for("broker.removed")
            assert lost["level"] == "error"
            assert "its count of jobs went back from 1 to 0;" in lost["error"]
            assert program.stop() == 0
