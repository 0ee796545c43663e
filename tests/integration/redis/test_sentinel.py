"""The broker on the master that Sentinel names, and what a failover does to it."""

import contextlib
import threading
from typing import Any

import pytest

from fileq.brokers.redis import RedisBroker, open_redis
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import an_entry, names, worker_info
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import config_on
from tests.support.redis_topology import broker_on, claim_and_complete, outcome_of
from tests.support.waiting import wait_until


def sentinel_settings(sentinel) -> dict[str, Any]:
    return {"redis.url": sentinel.url, "redis.min_idle_conns": 2, "redis.read_timeout": "1s"}


def test_every_method_works_on_the_master_that_sentinel_names(sentinel):
    with broker_on(**sentinel_settings(sentinel)) as broker:
        use_every_method(broker, sentinel.client())


def test_after_a_failover_the_same_broker_goes_on_with_the_new_master(sentinel):
    before = sentinel.master
    with broker_on(**sentinel_settings(sentinel)) as broker, contextlib.closing(broker.waiter()) as waiter:
        broker.register({"w1": worker_info()})
        broker.enqueue([an_entry(id) for id in names(3)])
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        waiter.arm()
        before.client().execute_command("WAIT", 1, 5000)

        outcomes = outcomes_during(broker, sentinel.failover)

        assert sentinel.master is not before
        assert outcomes <= {"done", "away"}
        wait_until(lambda: outcome_of(broker) == "done", what="the new master serves")
        assert [r.status for r in broker.renew([("w1", claim.raw)])] == ["held"]
        assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
        assert claim_and_complete(broker) == "job-0001"
        assert broker.census().drift == 0
        assert sentinel.master.client().llen("jobqueue:completed") == 2
        assert waiter.wait(10) or waiter.arm(), "the old connection ended, or waits on the new replica"
        waiter.arm()
        assert waiter.wait(10) is True, "there is a job left"


def test_while_a_dead_master_is_replaced_the_broker_is_unavailable(sentinel):
    before = sentinel.master
    with broker_on(**sentinel_settings(sentinel)) as broker:
        broker.enqueue([an_entry("a")])
        before.client().execute_command("WAIT", 1, 5000)
        before.kill()
        with pytest.raises(BrokerUnavailable, match="is unavailable"):
            broker.enqueue([an_entry("b")])
        sentinel.wait_failed_over(before)
        wait_until(lambda: outcome_of(broker) == "done", what="the new master serves")
        broker.enqueue([an_entry("b")])
        assert sentinel.master.client().llen("jobqueue:low_priority") == 2


def outcomes_during(broker: RedisBroker, act: Any) -> set[str]:
    """The outcomes of a worker's calls while `act` runs."""
    outcomes: set[str] = set()
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.01):
            outcomes.add(outcome_of(broker))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        act()
    finally:
        is_over.set()
        worker.join()
    return outcomes


def test_a_master_that_sentinel_does_not_know_is_unavailable(sentinel):
    with pytest.raises(BrokerUnavailable, match=r"is unavailable.*unknown-master"):
        open_redis(config_on(**{"redis.url": sentinel.url.replace(sentinel.master_name, "unknown-master")}))
