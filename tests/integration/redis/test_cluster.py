"""The broker on Redis Cluster: the names of its keys, hash slots that are unserved or migrate."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.brokers.redis import open_redis
from fileq.brokers.redis.layout import Keys
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.testing.conformance.builders import an_entry, foreign, worker_info
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import config_on
from tests.support.redis_topology import broker_on, claim_and_complete, outcome_of
from tests.support.servers import Server
from tests.support.waiting import wait_until

CLUSTER_KEYS = Keys(config_on(**{"redis.prefix": "{jobqueue}"}))


def cluster_settings(cluster, **changes: Any) -> dict[str, Any]:
    return {"redis.url": cluster.url, "redis.prefix": "{jobqueue}", "redis.min_idle_conns": 2, **changes}


def test_every_method_works_on_a_cluster(cluster):
    with broker_on(**cluster_settings(cluster)) as broker:
        use_every_method(broker, cluster.client(), CLUSTER_KEYS)
    home = cluster.node_of("{jobqueue}:workers")
    assert [node.client().dbsize() > 0 for node in cluster.nodes] == [node is home for node in cluster.nodes]


def test_on_a_cluster_a_waiter_wakes_for_either_queue(cluster):
    client = cluster.client()
    with (
        broker_on(**cluster_settings(cluster)) as broker,
        contextlib.closing(broker.waiter()) as waiter,
    ):
        for key in reversed(CLUSTER_KEYS.queues):
            waiter.arm()
            client.lpush(key, foreign("a"))
            assert waiter.wait(10) is True
            client.delete(key)


@pytest.mark.parametrize("prefix", ["jobqueue", "{}jobqueue", "}jobqueue{"])
def test_on_a_cluster_keys_without_a_hash_tag_are_refused_at_start(cluster, prefix):
    with pytest.raises(ConfigError, match="one hash tag") as caught:
        open_redis(config_on(**cluster_settings(cluster, **{"redis.prefix": prefix})))
    for name in ("high_priority", "completed", "worker:x:processing", "job:"):
        assert f"{prefix}:{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("worker.queues", {"high": "urgent"}),
        ("worker.queues", {"low": "{other}:low"}),
        ("worker.completed_list", "done"),
        ("worker.dead_letter_list", "dead"),
        ("worker.processing_list_pattern", "processing:%s"),
        ("worker.heartbeat_key_pattern", "beat:{%s}"),
        ("producer.rate_limit_key", "limit"),
    ],
)
def test_on_a_cluster_a_key_in_another_hash_slot_is_named_and_refused(cluster, key, value):
    [name] = value.values() if isinstance(value, dict) else [value]
    with pytest.raises(ConfigError, match="one hash tag") as caught:
        open_redis(config_on(**cluster_settings(cluster, **{key: value})))
    assert name.partition("%s")[0] in str(caught.value)
    assert "{jobqueue}:workers" not in str(caught.value), "only the wrong keys are named"


def test_custom_keys_that_carry_the_hash_tag_are_accepted(cluster):
    own = {"worker.completed_list": "done:{jobqueue}", "worker.queues": {"high": "{jobqueue}!"}}
    settings = cluster_settings(cluster, **own)
    with broker_on(**settings) as broker:
        use_every_method(broker, cluster.client(), Keys(config_on(**settings)))


def test_a_hash_slot_that_no_node_serves_is_unavailable(cluster):
    home, slot = cluster.node_of("{jobqueue}:workers"), slot_of(cluster)
    with broker_on(**cluster_settings(cluster)) as broker:
        broker.enqueue([an_entry("a")])
        with unserved(cluster, home, slot), pytest.raises(BrokerUnavailable, match="is unavailable"):
            broker.enqueue([an_entry("b")])
        wait_until(cluster.is_settled, what="the cluster is whole again")
        broker.enqueue([an_entry("b")])


def slot_of(cluster) -> int:
    return int(cluster.nodes[0].client().execute_command("CLUSTER", "KEYSLOT", "{jobqueue}:workers"))


@contextlib.contextmanager
def unserved(cluster, home: Server, slot: int) -> Iterator[None]:
    for node in cluster.nodes:
        node.client().execute_command("CLUSTER", "DELSLOTS", slot)
    yield
    home.client().execute_command("CLUSTER", "ADDSLOTS", slot)


def test_a_migrating_hash_slot_is_unavailable_until_the_broker_finds_its_new_node(cluster):
    home, slot = cluster.node_of("{jobqueue}:workers"), slot_of(cluster)
    other = next(node for node in cluster.nodes if node is not home)
    ids = {node: node.client().execute_command("CLUSTER", "MYID").decode() for node in cluster.nodes}
    with broker_on(**cluster_settings(cluster)) as broker, contextlib.closing(broker.waiter()) as waiter:
        broker.register({"w1": worker_info()})
        broker.enqueue([an_entry("a")])
        claim_and_complete(broker)
        waiter.arm()
        try:
            setslot(other, slot, "IMPORTING", ids[home])
            setslot(home, slot, "MIGRATING", ids[other])
            with pytest.raises(BrokerUnavailable, match="is unavailable"):
                broker.enqueue([an_entry("b")])
            keys = home.client().execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            home.client().execute_command("MIGRATE", "127.0.0.1", other.port, "", 0, 5000, "KEYS", *keys)
            for node in (other, home, *cluster.nodes):
                setslot(node, slot, "NODE", ids[other])

            wait_until(lambda: outcome_of(broker) == "done", what="the broker has found the new node")
            broker.enqueue([an_entry("b")])
            wait_until(lambda: armed_and_woken(waiter), what="the waiter waits there")
            assert claim_and_complete(broker) == "b"
            assert broker.census().drift == 0
            assert other.client().llen("{jobqueue}:completed") == 2
        finally:
            for node in cluster.nodes:
                node.client().flushall()
            for node in (home, other, *cluster.nodes):
                setslot(node, slot, "NODE", ids[home])


def armed_and_woken(waiter: Any) -> bool:
    with contextlib.suppress(BrokerUnavailable):
        waiter.arm()
        return bool(waiter.wait(0.2))
    return False


def setslot(node: Server, slot: int, *words: str) -> None:
    node.client().execute_command("CLUSTER", "SETSLOT", slot, *words)
