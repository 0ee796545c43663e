"""A promotion by Sentinel while a worker runs, and an old master that comes back with what it alone has.

What the replica had acknowledged goes on, each job once. A claim that the promotion undid can't be settled. A job that
only the old master has is never run.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fileq.brokers.batches import NewBatch
from fileq.brokers.redis import RedisBroker
from fileq.brokers.types import Entry
from fileq.core.job import State
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import a_job, an_entry, foreign, worker_info
from tests.support.redis_topology import broker_on, outcome_of
from tests.support.servers.sentinel import Sentinel
from tests.support.servers.server import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, open_worker_setup

QUEUE = "jobqueue:low_priority"


def settings_of(sentinel: Sentinel) -> dict[str, Any]:
    return {
        "redis.url": sentinel.url,
        "redis.min_idle_conns": 2,
        "redis.read_timeout": "1s",
        "redis.dial_timeout": "1s",
    }


@pytest.fixture
def setup(tmp_path: Path, sentinel: Sentinel) -> Iterator[WorkerSetup]:
    with open_worker_setup(tmp_path, settings_of(sentinel)) as setup:
        yield setup


@contextlib.contextmanager
def master_alone(sentinel: Sentinel) -> Iterator[Redis]:
    """In the block, what the master writes reaches no replica. After it, the replica is promoted; the old master is
    frozen, and comes back when a test resumes it."""
    master, replica = sentinel.master, sentinel.replica
    client = master.client()
    assert client.execute_command("WAIT", 1, 5000) == 1
    replica.pause()
    client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    yield client
    master.pause()
    replica.resume()
    sentinel.wait_failed_over(master)


def bring_back(sentinel: Sentinel, old: Server) -> None:
    """Returns when it follows the new master."""
    old.resume()
    wait_until(sentinel.is_settled, 40, "the old master follows the new one")


def test_a_claim_that_a_promotion_undid_can_not_be_settled(sentinel):
    """The job runs again. What its first slot says of it does not count."""
    before = sentinel.master
    with broker_on(**settings_of(sentinel)) as broker:
        broker.register({"w1": worker_info(), "w2": worker_info()})
        broker.enqueue([an_entry("a")])
        with master_alone(sentinel):
            [lost] = broker.settle_and_claim([], ["w1"]).claims
        wait_until(lambda: outcome_of(broker) == "done", 20, "the new master serves")
        [renewed] = broker.renew([("w1", lost.raw)])
        assert renewed.status != "held"
        [claim] = broker.settle_and_claim([], ["w2"]).claims
        assert (claim.id, claim.slot) == ("a", "w2")
        assert broker.settle_and_claim([complete(lost)], []).settled == (SettleResult.FENCED,)
        bring_back(sentinel, before)
        assert broker.settle_and_claim([complete(lost)], []).settled == (SettleResult.FENCED,)
        assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
        assert broker.census().drift == 0
        assert sentinel.master is not before


def test_a_batch_that_a_promotion_opened_again_is_filled_sealed_and_counted_once(sentinel):
    """The promoted replica has neither the seal nor the end of the member: both happen again."""
    with broker_on(**settings_of(sentinel)) as broker:
        broker.register({"w1": worker_info()})
        broker.create_batch(NewBatch("b"))
        broker.enqueue([Entry(a_job("a", batch_id="b"), "low", joins=True)])
        with master_alone(sentinel):
            assert broker.seal_batch("b")
            [lost] = broker.settle_and_claim([], ["w1"]).claims
            assert broker.settle_and_claim([complete(lost)], []).finished_batches == ("b",)
        wait_until(lambda: outcome_of(broker) == "done", 20, "the new master serves")
        assert state_and_counts(broker) == ("open", 1, 0)
        assert broker.seal_batch("b")
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
        assert state_and_counts(broker) == ("finished", 1, 1)
        assert broker.census().drift == 0


def state_and_counts(broker: RedisBroker) -> tuple[str, int, int]:
    [view] = broker.batches_by_id(["b"])
    assert view is not None
    return view.state.value, view.total, view.completed


def test_a_worker_goes_on_with_the_new_master_and_runs_nothing_that_only_the_old_one_has(setup, sentinel):
    before = sentinel.master
    early, late = ids("early", 20), ids("late", 20)
    setup.enqueue("gated", "long")
    worker = setup.worker(count=2)
    setup.wait_logged("start", 1)
    setup.enqueue("note", *early)
    setup.wait_for(State.COMPLETED, early)
    setup.freeze(worker)
    with master_alone(sentinel) as old:
        old.lpush(QUEUE, foreign("planted", filepath="", type="note"))
    worker.signal(signal.SIGCONT)
    wait_until(lambda: outcome_of(setup.broker) == "done", 20, "the new master serves")
    setup.enqueue("note", *late)
    setup.wait_for(State.COMPLETED, late)
    bring_back(sentinel, before)
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["long"])
    assert sorted(setup.logged("note")) == sorted([*early, *late]), "each once, and not the planted one"
    assert setup.logged("end") == ["long"]
    assert setup.broker.records(["planted"]) == [None]
    assert [one.client().llen(QUEUE) for one in sentinel.nodes] == [0, 0]
    assert worker.events("job.fenced") == []
    assert setup.census().drift == 0
