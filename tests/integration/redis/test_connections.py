"""The same broker over TLS, a socket, with a password, in a database: every method over each of them."""

import contextlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fileq.brokers.redis import open_redis
from fileq.brokers.redis.store import WORKER_CONNECTIONS, Link
from fileq.brokers.types import Entry
from fileq.core.errors import BrokerUnavailable
from fileq.testing.conformance.builders import a_job, an_entry, foreign
from tests.support.program import Program
from tests.support.redis_scenario import DEFAULT_KEYS, use_every_method
from tests.support.redis_store import config_on
from tests.support.redis_topology import broker_on
from tests.support.servers import Server
from tests.support.waiting import wait_until

SECRET = "s3cret/with:odd@signs%"
QUOTED = "s3cret%2Fwith%3Aodd%40signs%25"


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


def test_every_method_works_over_tls_with_a_client_certificate(tls_server):
    with broker_on(**tls_settings(tls_server)) as broker:
        use_every_method(broker, tls_server.client())


def test_a_rediss_url_selects_tls(tls_server):
    settings = {"redis.url": f"rediss://{tls_server.address}/0", "redis.tls.enabled": False, "redis.addr": ""}
    with broker_on(**tls_settings(tls_server, **settings)) as broker:
        use_every_method(broker, tls_server.client())


def test_over_tls_a_waiter_wakes_for_either_queue_at_once(tls_server):
    """Data that the TLS layer sends on its own is neither a reply nor a reason to wait."""
    client = tls_server.client()
    with broker_on(**tls_settings(tls_server, **{"worker.brpoplpush_timeout": "30s"})) as broker:
        for queue in (1, 0, 1):
            with contextlib.closing(broker.waiter()) as waiter:
                waiter.arm()
                assert waiter.wait(0.05) is False
                client.lpush(DEFAULT_KEYS.queues[queue], foreign("a"))
                assert waiter.wait(10) is True
            client.flushall()


def test_a_server_with_an_untrusted_certificate_is_rejected(tls_server):
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        open_redis(config_on(**tls_settings(tls_server, **{"redis.tls.ca_file": ""})))


def test_a_server_that_wants_a_client_certificate_is_unavailable_without_one(tls_server):
    without = {"redis.tls.cert_file": "", "redis.tls.key_file": ""}
    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        open_redis(config_on(**tls_settings(tls_server, **without)))


def test_a_server_that_wants_no_client_certificate_needs_only_the_ca(tls_server):
    tls_server.client().config_set("tls-auth-clients", "no")
    without = {"redis.tls.cert_file": "", "redis.tls.key_file": ""}
    with broker_on(**tls_settings(tls_server, **without)) as broker:
        use_every_method(broker, tls_server.client())


# sockets, passwords, databases


def test_every_method_works_over_a_unix_socket(redis_server):
    with Server(redis_server.binary, unixsocket=True) as server:
        with broker_on(**{"redis.url": f"unix://{server.unixsocket}"}) as broker:
            use_every_method(broker, server.client())
        with broker_on(**{"redis.url": f"unix://{server.unixsocket}?db=3"}) as broker:
            broker.enqueue([an_entry("a")])
        assert server.client(db=3).llen("jobqueue:low_priority") == 1


def test_the_username_and_password_of_the_settings_are_used(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    login = {"redis.addr": redis_server.address, "redis.username": "app", "redis.password": SECRET}
    with broker_on(**login) as broker:
        use_every_method(broker, redis_server.client())
        assert b"user=app" in redis_server.client().execute_command("CLIENT", "LIST")


def test_credentials_in_the_url_are_used_and_not_shown(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    with broker_on(**{"redis.url": f"redis://app:{QUOTED}@{redis_server.address}/2"}) as broker:
        use_every_method(broker, redis_server.client(db=2))
        assert QUOTED not in broker.where
        assert SECRET not in broker.where


def test_a_password_without_a_username_is_that_of_the_default_user(redis_server):
    with Server(redis_server.binary, requirepass="plain") as server:
        with broker_on(**{"redis.addr": server.address, "redis.password": "plain"}) as broker:
            assert broker.census().drift == 0
        with broker_on(**{"redis.url": f"redis://:plain@{server.address}"}) as broker:
            assert broker.census().drift == 0


def test_credentials_of_the_settings_win_over_those_of_the_url(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all")
    url = f"redis://other:wrong@{redis_server.address}"
    with broker_on(**{"redis.url": url, "redis.username": "app", "redis.password": SECRET}) as broker:
        assert broker.census().drift == 0


def test_more_threads_than_connections_wait_for_each_other(redis_server):
    """Each thread makes calls one after another, and far fewer connections may be open."""
    with broker_on(**{"redis.addr": redis_server.address, "redis.pool_size_multiplier": 1}) as broker:
        threads = 20 * (os.cpu_count() or 1)
        start = threading.Barrier(threads)

        def call(number: int) -> None:
            start.wait(60)
            for one in range(5):
                broker.enqueue([an_entry(f"{number}-{one}")])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(call, range(threads)))
        assert sum(broker.census().pending.values()) == 5 * threads


def test_callers_get_a_connection_in_the_order_in_which_they_ask(redis_server):
    """A thread that gives one back and asks again at once, as the pump does under load, waits behind the others."""
    link = Link(config_on(**{"redis.addr": redis_server.address}), "worker")
    order: list[str] = []
    held = [link.connection(), link.connection()]

    def call(name: str) -> None:
        connection = link.connection()
        order.append(name)
        link.give_back(connection)

    others = []
    for name in ("first", "second"):
        others.append(threading.Thread(target=call, args=(name,)))
        others[-1].start()
        wait_until(lambda: len(link._callers) == len(others), 20, "a caller that waits")
    link.give_back(held.pop())
    again = link.connection()
    order.append("again")
    for thread in others:
        thread.join(20)
    assert order == ["first", "second", "again"]
    for connection in (again, *held):
        link.give_back(connection)
    link.close()


def worker_names(server: Server) -> list[str]:
    names = [client["name"] for client in server.client().client_list()]
    return [name for name in names if name.startswith("fileq:worker:")]


def test_a_worker_has_few_connections_that_bear_its_name(redis_server, tmp_path):
    """Idle and under load: jobs in all slots, retries, two turns in flight, a renewal every second."""
    settings = {
        "redis.addr": redis_server.address,
        "producer.scan_dir": tmp_path,
        "worker.isolation": "thread",
        "worker.heartbeat_ttl": "3s",
        "imports": "[app]",
    }
    (tmp_path / "app.py").write_text("import fileq\n\n@fileq.task('nothing')\ndef nothing(job, context) -> None: ...\n")
    with (
        broker_on(**{"redis.addr": redis_server.address}) as broker,
        Program("worker", cwd=tmp_path, settings=settings) as worker,
    ):
        most = 0

        def is_done() -> bool:
            nonlocal most
            names = worker_names(redis_server)
            assert set(names) <= {f"fileq:worker:{socket.gethostname()}-{worker.process.pid}"}
            most = max(most, len(names))
            return sum(broker.census().pending.values()) == 0

        for round in range(3):
            broker.enqueue([Entry(a_job(f"{round}-{i}", filepath="", type="nothing"), "low") for i in range(2000)])
            wait_until(is_done, 60, "all jobs have run")
        assert 2 <= most <= WORKER_CONNECTIONS
        assert broker.census().dead == 0


def test_a_user_without_permission_to_name_its_connections_works(redis_server):
    redis_server.add_user("app", SECRET, "~*", "&*", "+@all", "-client|setname")
    login = {"redis.addr": redis_server.address, "redis.username": "app", "redis.password": SECRET}
    with contextlib.closing(open_redis(config_on(**login), role="worker")) as broker:
        broker.enqueue([an_entry("a")])
        assert broker.census().pending["low"] == 1


def test_two_databases_of_a_server_share_no_job(redis_server):
    with (
        broker_on(**{"redis.addr": redis_server.address, "redis.db": 5}) as five,
        broker_on(**{"redis.addr": redis_server.address}) as zero,
    ):
        five.enqueue([an_entry("a")])
        assert zero.census().pending["low"] == 0
        assert redis_server.client(db=5).llen("jobqueue:low_priority") == 1


@pytest.mark.parametrize("how", ["settings", "url"])
def test_a_wrong_password_is_unavailable_and_the_message_contains_no_secret(redis_server, how):
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
