"""One connection to Redis and the pool of them: time limits, parts of replies, connections that ended, forks."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.brokers.redis.discovery import SentinelDiscovery
from fileq.brokers.redis.store import (
    ConnectionOptions,
    InFlightCall,
    Link,
    LoginRefused,
    RedisConnection,
    RedisStore,
    ReplyError,
    packed,
)
from fileq.config.schema import TlsSettings
from fileq.core.errors import BrokerUnavailable
from tests.support.redis_store import NO_RETRIES, config_on
from tests.support.servers import Server
from tests.support.waiting import wait_until

OPTIONS = ConnectionOptions(dial_timeout_s=5.0, timeout_s=5.0)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        yield listening


def connected(listener: socket.socket, timeout_s: float = 5.0) -> tuple[RedisConnection, socket.socket]:
    """A connection and its other end, which the test plays itself."""
    connection = RedisConnection(listener.getsockname(), OPTIONS._replace(timeout_s=timeout_s))
    return connection, listener.accept()[0]


def ask(connection: RedisConnection, *command: str) -> object:
    connection.send(packed([command]))
    return connection.read()


def test_an_error_reply_is_a_value_and_the_connection_goes_on(redis_server: Server) -> None:
    connection = RedisConnection(("127.0.0.1", redis_server.port), OPTIONS)
    refused = ask(connection, "NOSUCHCOMMAND")
    assert isinstance(refused, ReplyError)
    assert (refused.code, str(refused)[:15]) == ("ERR", "unknown command")
    assert ask(connection, "ECHO", "a") == b"a"
    connection.close()


def test_a_reply_that_arrives_in_parts_is_waited_for_and_kept(listener: socket.socket) -> None:
    connection, server = connected(listener)
    with server:
        for part in (b"*2\r\n$5\r\nhe", b"llo\r"):
            server.sendall(part)
            with pytest.raises(TimeoutError):
                connection.read(0.0)
        server.sendall(b"\n:7\r\n+next\r\n")
        assert connection.read(0.0) == [b"hello", 7]
        assert connection.read() == b"next"
    connection.close()


def test_a_reply_longer_than_the_buffer_is_read_whole(redis_server: Server) -> None:
    connection = RedisConnection(("127.0.0.1", redis_server.port), OPTIONS)
    long = "x" * 1_000_000
    assert ask(connection, "ECHO", long) == long.encode()
    connection.close()


def test_a_server_that_is_silent_or_takes_nothing_is_a_time_out(listener: socket.socket) -> None:
    connection, server = connected(listener, timeout_s=0.05)
    with server:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            connection.read()
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            connection.send(b"x" * 10_000_000)
    connection.close()


@pytest.mark.parametrize("look", ["read", "is_quiet"])
def test_after_a_look_that_did_not_wait_the_time_limit_applies_again(listener: socket.socket, look: str) -> None:
    connection, server = connected(listener)
    if look == "is_quiet":
        assert connection.is_quiet()
    else:
        with pytest.raises(TimeoutError):
            connection.read(0.0)
    received = bytearray()

    def receive() -> None:
        with server:
            while part := server.recv(1 << 16):
                received.extend(part)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    with contextlib.closing(connection):
        connection.send(b"x" * 10_000_000)  # more than the kernel holds
    thread.join(10)
    assert len(received) == 10_000_000


def test_a_connection_that_the_server_closed_is_an_error(listener: socket.socket) -> None:
    connection, server = connected(listener)
    server.close()
    assert not connection.is_quiet()
    with pytest.raises(ConnectionError, match="closed the connection"):
        connection.read()
    connection.close()


def test_a_connection_with_an_unread_reply_is_not_quiet(listener: socket.socket) -> None:
    connection, server = connected(listener)
    with server:
        assert connection.is_quiet()
        server.sendall(b"+late\r\n")
        assert not connection.is_quiet()
    connection.close()


@pytest.mark.parametrize("reply", [b"-NOAUTH Authentication required.\r\n", b"-WRONGPASS invalid\r\n"])
def test_a_connection_that_is_not_logged_in_is_not_used_again(listener: socket.socket, reply: bytes) -> None:
    connection, server = connected(listener)
    with server:
        server.sendall(reply)
        with pytest.raises(LoginRefused):
            connection.read()
    connection.close()


@pytest.mark.parametrize("reply", [b"-LOADING it is\r\n", b"-ERR max number of clients reached\r\n"])
def test_a_server_that_takes_no_commands_yet_ends_the_connection(listener: socket.socket, reply: bytes) -> None:
    connection, server = connected(listener)
    with server:
        server.sendall(reply)
        with pytest.raises(ConnectionError):
            connection.read()
    connection.close()


def test_a_database_number_that_the_server_does_not_have_is_refused(redis_server: Server) -> None:
    with pytest.raises(LoginRefused, match="DB index is out of range"):
        RedisConnection(("127.0.0.1", redis_server.port), OPTIONS._replace(db=10_000))


def test_session_tickets_of_tls_are_no_reply(tls_server: Server) -> None:
    assert tls_server.tls is not None
    files = tls_server.tls
    tls = TlsSettings(True, str(files.ca_file), str(files.cert_file), str(files.key_file))
    connection = RedisConnection(("127.0.0.1", tls_server.port), OPTIONS._replace(tls=tls))
    assert connection.is_quiet()
    assert ask(connection, "ECHO", "a") == b"a"
    assert connection.is_quiet()
    connection.send(packed([("ECHO", "b")]))
    wait_until(lambda: not connection.is_quiet(), what="the reply arrived")
    connection.close()


# the pool


def test_an_idle_connection_that_ended_is_replaced_without_a_retry(redis_server: Server) -> None:
    store = RedisStore(config_on(**{"redis.addr": redis_server.address, **NO_RETRIES}))
    store.call("PING")
    redis_server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    store.link.cool()
    assert store.call("PING") == b"PONG"
    store.link.close()


def test_no_more_connections_are_opened_than_the_pool_holds(redis_server: Server) -> None:
    config = config_on(**{"redis.addr": redis_server.address, "redis.pool_size_multiplier": 1})
    store = RedisStore(config)
    lent = [store.link.connection() for _ in range(store.link.topology.pool_size)]
    with pytest.raises(BrokerUnavailable, match=f"all {len(lent)} connections to it are in use"):
        store.call("PING")
    store.link.give_back(lent[0])
    assert store.call("PING") == b"PONG"
    store.link.discard(store.link.connection())
    store.link.discard(lent[1])
    assert len([store.link.connection() for _ in lent]) == len(lent)
    store.link.close()


def test_closing_ends_a_call_of_another_thread(listener: socket.socket) -> None:
    link = Link(config_on(**{"redis.url": f"unix://{listener.getsockname()}", "redis.read_timeout": "1m"}))
    connection = link.connection()
    server, _ = listener.accept()
    ended: list[BaseException] = []

    def read() -> None:
        try:
            connection.read()
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with server:
        link.close()
        thread.join(10)
        assert len(ended) == 1


def test_a_fork_opens_connections_of_its_own_and_leaves_those_of_its_parent(redis_server: Server) -> None:
    code = """\
import os, sys
from fileq.brokers.redis.store import RedisStore
from tests.support.redis_store import config_on
store = RedisStore(config_on(**{"redis.addr": sys.argv[1], "redis.max_retries": 0}))
before = store.call("CLIENT", "ID")
dedicated = store.link.dedicated()
child = os.fork()
if child == 0:
    differs = store.call("CLIENT", "ID") != before
    dedicated.close()
    store.link.close()
    os._exit(0 if differs else 1)
assert os.waitpid(child, 0)[1] == 0
assert store.call("CLIENT", "ID") == before
assert dedicated.is_quiet()
"""
    subprocess.run([sys.executable, "-c", code, redis_server.address], cwd=Path(__file__).parents[3], check=True)


def test_a_master_that_became_a_replica_is_left_for_the_one_that_sentinel_names(
    redis_server: Server, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = [listener.getsockname(), ("127.0.0.1", redis_server.port)]
    monkeypatch.setattr(SentinelDiscovery, "address", lambda self: masters.pop(0))
    store = RedisStore(config_on(**{"redis.url": "redis+sentinel://127.0.0.1:1/main/0", "redis.max_retries": 1}))
    call = InFlightCall(store.link, [("PING",)], list)
    server, _ = listener.accept()
    with server:
        server.sendall(b"-READONLY You can't write against a read only replica.\r\n")
        assert call.take() == [b"PONG"]
    assert store.call("PING") == b"PONG"
    assert masters == []
    store.link.close()
