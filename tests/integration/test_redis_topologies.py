"""The same broker over TLS, a socket, a password, Sentinel and Cluster: a whole life of jobs over each of them."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.brokers.redis import RedisBroker, open_redis
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import an_entry, foreign, names, worker_info
from tests.support.redis_store import config_on, whole_life
from tests.support.servers import Server
from tests.support.waiting import wait_until

SECRET = "s3cret/with:odd@signs%"
QUOTED = "s3cret%2Fwith%3Aodd%40signs%25"


@contextlib.contextmanager
def broker_on(**settings: Any) -> Iterator[RedisBroker]:
    with contextlib.closing(open_redis(config_on(**settings))) as broker:
        yield broker


def claim_and_complete(broker: RedisBroker, slot: str = "w1") -> str:
    [claim] = broker.settle_and_claim([], [slot]).claims
    assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
    return claim.id


# TLS


def tls_settings(server: Server, **changes: Any) -> dict[str, Any]:
    assert server.tls is not None
    return {
        "redis.addr": server.address,
        "redis.tls.enabled": True,
        "redis.tls.ca_file": server.tls.ca_file,
        "redis.tls.cert_file": server.tls.cert_file,
        "redis.tls.key_file": server.tls.key_file,
        **changes,
    }


def test_a_whole_life_over_tls_with_a_certificate_of_ones_own(tls_server):
    with broker_on(**tls_settings(tls_server)) as broker:
        whole_life(broker, tls_server.client())


def test_rediss_urls_mean_tls(tls_server):
    settings = {"redis.url": f"rediss://{tls_server.address}/0", "redis.tls.enabled": False, "redis.addr": ""}
    with broker_on(**tls_settings(tls_server, **settings)) as broker:
        whole_life(broker, tls_server.client())


def test_over_tls_a_waiter_wakes_for_either_queue_at_once(tls_server):
    """What TLS sends of its own accord must not be taken for an answer, nor be waited on."""
    client = tls_server.client()
    with broker_on(**tls_settings(tls_server, **{"worker.brpoplpush_timeout": "30s"})) as broker:
        for queue in (1, 0, 1):
            with contextlib.closing(broker.waiter()) as waiter:
                waiter.arm()
                assert waiter.wait(0.05) is False
                client.lpush(broker.names.queues[queue], foreign("a"))
                assert waiter.wait(10) is True
            client.flushall()


def test_a_server_whose_certificate_nobody_vouches_for_is_not_talked_to(tls_server):
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        open_redis(config_on(**tls_settings(tls_server, **{"redis.tls.ca_file": ""})))


def test_a_server_that_wants_a_certificate_lets_nobody_in_without(tls_server):
    without = {"redis.tls.cert_file": "", "redis.tls.key_file": ""}
    with pytest.raises(BrokerUnavailable, match="is away"):
        open_redis(config_on(**tls_settings(tls_server, **without)))


def test_a_server_that_wants_no_certificate_needs_only_the_ca(tls_server):
    tls_server.client().config_set("tls-auth-clients", "no")
    without = {"redis.tls.cert_file": "", "redis.tls.key_file": ""}
    with broker_on(**tls_settings(tls_server, **without)) as broker:
        whole_life(broker, tls_server.client())


# sockets, passwords, databases


def test_a_whole_life_over_a_unix_socket(redis_server):
    with Server(redis_server.binary, unixsocket=True) as server:
        with broker_on(**{"redis.url": f"unix://{server.unixsocket}"}) as broker:
            whole_life(broker, server.client())
        with broker_on(**{"redis.url": f"unix://{server.unixsocket}?db=3"}) as broker:
            broker.enqueue([an_entry("a")])
        assert server.client(db=3).llen("jobqueue:low_priority") == 1


def test_a_username_and_password_of_the_configuration(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    login = {"redis.addr": redis_server.address, "redis.username": "app", "redis.password": SECRET}
    with broker_on(**login) as broker:
        whole_life(broker, redis_server.client())
        assert b"user=app" in redis_server.client().execute_command("CLIENT", "LIST")


def test_credentials_in_the_url(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    with broker_on(**{"redis.url": f"redis://app:{QUOTED}@{redis_server.address}/2"}) as broker:
        whole_life(broker, redis_server.client(db=2))
        assert QUOTED not in broker.where
        assert SECRET not in broker.where


def test_a_password_without_a_user_is_the_default_users(redis_server):
    with Server(redis_server.binary, requirepass="plain") as server:
        with broker_on(**{"redis.addr": server.address, "redis.password": "plain"}) as broker:
            assert broker.census().drift == 0
        with broker_on(**{"redis.url": f"redis://:plain@{server.address}"}) as broker:
            assert broker.census().drift == 0


def test_credentials_of_their_own_beat_those_of_the_url(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    url = f"redis://nobody:wrong@{redis_server.address}"
    with broker_on(**{"redis.url": url, "redis.username": "app", "redis.password": SECRET}) as broker:
        assert broker.census().drift == 0


def test_a_database_keeps_its_jobs_to_itself(redis_server):
    with (
        broker_on(**{"redis.addr": redis_server.address, "redis.db": 5}) as five,
        broker_on(**{"redis.addr": redis_server.address}) as zero,
    ):
        five.enqueue([an_entry("a")])
        assert zero.census().pending["low"] == 0
        assert redis_server.client(db=5).llen("jobqueue:low_priority") == 1


@pytest.mark.parametrize("how", ["settings", "url"])
def test_a_wrong_password_is_away_and_its_message_holds_no_secret(redis_server, how):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    wrong = "Wr0ngPassw0rd"
    settings = {"redis.url": f"redis://app:{wrong}@{redis_server.address}"}
    if how == "settings":
        settings = {"redis.addr": redis_server.address, "redis.username": "app", "redis.password": wrong}
    with pytest.raises(BrokerUnavailable, match=r"username-password|WRONGPASS") as caught:
        open_redis(config_on(**settings))
    error: BaseException | None = caught.value
    while error is not None:
        assert wrong not in str(error)
        assert wrong not in repr(error)
        error = error.__cause__ or error.__context__


# Sentinel


def sentinel_settings(sentinel) -> dict[str, Any]:
    return {"redis.url": sentinel.url, "redis.min_idle_conns": 2, "redis.read_timeout": "1s"}


def test_a_whole_life_on_the_master_that_sentinel_names(sentinel):
    with broker_on(**sentinel_settings(sentinel)) as broker:
        whole_life(broker, sentinel.client())


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
        assert [r.hold for r in broker.renew([("w1", claim.raw)])] == ["held"]
        assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
        assert claim_and_complete(broker) == "job-0001"
        assert broker.census().drift == 0
        assert sentinel.master.client().llen("jobqueue:completed") == 2
        assert waiter.wait(10) or waiter.arm(), "the old connection ended, or still waits on what is now a replica"
        waiter.arm()
        assert waiter.wait(10) is True, "there is a job left"


def test_while_a_dead_master_is_replaced_the_broker_is_away(sentinel):
    before = sentinel.master
    with broker_on(**sentinel_settings(sentinel)) as broker:
        broker.enqueue([an_entry("a")])
        before.client().execute_command("WAIT", 1, 5000)
        before.kill()
        with pytest.raises(BrokerUnavailable, match="is away"):
            broker.enqueue([an_entry("b")])
        sentinel.wait_failed_over(before)
        wait_until(lambda: outcome_of(broker) == "done", what="the new master serves")
        broker.enqueue([an_entry("b")])
        assert sentinel.master.client().llen("jobqueue:low_priority") == 2


def outcome_of(broker: RedisBroker) -> str:
    try:
        broker.promote()
    except BrokerUnavailable:
        return "away"
    except BrokerError as error:
        return str(error)
    return "done"


def outcomes_during(broker: RedisBroker, act: Any) -> set[str]:
    """What the calls of a busy worker end in while this happens."""
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


def test_a_master_that_sentinel_does_not_know_is_away(sentinel):
    with pytest.raises(BrokerUnavailable, match=r"is away.*nobody"):
        open_redis(config_on(**{"redis.url": sentinel.url.replace(sentinel.master_name, "nobody")}))


# Cluster


def cluster_settings(cluster, **changes: Any) -> dict[str, Any]:
    return {"redis.url": cluster.url, "redis.prefix": "{jobqueue}", "redis.min_idle_conns": 2, **changes}


def test_a_whole_life_on_a_cluster(cluster):
    with broker_on(**cluster_settings(cluster)) as broker:
        whole_life(broker, cluster.client())
    home = cluster.node_of("{jobqueue}:workers")
    assert [node.client().dbsize() > 0 for node in cluster.nodes] == [node is home for node in cluster.nodes]


def test_on_a_cluster_a_waiter_wakes_for_either_queue(cluster):
    client = cluster.client()
    with (
        broker_on(**cluster_settings(cluster)) as broker,
        contextlib.closing(broker.waiter()) as waiter,
    ):
        for key in reversed(broker.names.queues):
            waiter.arm()
            client.lpush(key, foreign("a"))
            assert waiter.wait(10) is True
            client.delete(key)


@pytest.mark.parametrize("prefix", ["jobqueue", "{}jobqueue", "}jobqueue{"])
def test_on_a_cluster_names_without_a_hash_tag_are_refused_at_start(cluster, prefix):
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
def test_on_a_cluster_a_name_in_another_slot_is_refused_by_name(cluster, key, value):
    [name] = value.values() if isinstance(value, dict) else [value]
    with pytest.raises(ConfigError, match="one hash tag") as caught:
        open_redis(config_on(**cluster_settings(cluster, **{key: value})))
    assert name.partition("%s")[0] in str(caught.value)
    assert "{jobqueue}:workers" not in str(caught.value), "only what is astray is named"


def test_names_of_ones_own_that_carry_the_tag_are_welcome(cluster):
    own = {"worker.completed_list": "done:{jobqueue}", "worker.queues": {"high": "{jobqueue}!"}}
    with broker_on(**cluster_settings(cluster, **own)) as broker:
        whole_life(broker, cluster.client())


def test_a_slot_that_nobody_serves_is_away(cluster):
    home, slot = cluster.node_of("{jobqueue}:workers"), slot_of(cluster)
    with broker_on(**cluster_settings(cluster)) as broker:
        broker.enqueue([an_entry("a")])
        with unserved(cluster, home, slot), pytest.raises(BrokerUnavailable, match="is away"):
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


def test_a_slot_on_its_way_to_another_node_is_away_and_followed_when_it_has_arrived(cluster):
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
            with pytest.raises(BrokerUnavailable, match="is away"):
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
