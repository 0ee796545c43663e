"""The servers that other tests use: on private ports, quick to start, and stopped with the test process."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis

from tests.support.servers import (
    PORTS,
    Certificates,
    Cluster,
    Sentinel,
    Server,
    ServerFailed,
    available_servers,
    free_port,
)
from tests.support.servers.watchdog import Watchdog
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_server(redis_server):
    """A server of each kind that no other test uses, so that a test may damage it."""
    with Server(redis_server.binary, aof=True, unixsocket=True) as server:
        yield server


def is_alive(pid):
    """Whether the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_replies_on_a_private_port(redis_server):
    assert redis_server.client().ping()
    assert redis_server.port in PORTS
    assert 6379 not in PORTS


@pytest.mark.parametrize("port", [6379, 80, 40_000])
def test_a_port_that_is_not_private_is_refused(port):
    with pytest.raises(ValueError, match=f"port is {port}"):
        Server(available_servers()["valkey"], port=port)


def test_a_server_starts_within_three_seconds(redis_server):
    began = time.monotonic()
    with Server(redis_server.binary) as server:
        assert server.client().ping()
        assert time.monotonic() - began < 3, "it takes 40 ms on an idle machine"


def test_a_taken_port_is_not_mistaken_for_the_new_server(redis_server):
    with pytest.raises(ServerFailed, match="Address already in use"):
        Server(redis_server.binary, port=redis_server.port).start()


def test_a_port_that_is_taken_before_the_start_is_replaced(redis_server, monkeypatch):
    ports = iter([redis_server.port, free_port()])
    monkeypatch.setattr("tests.support.servers.server.free_port", lambda: next(ports))
    with Server(redis_server.binary) as server:
        assert server.port != redis_server.port
        assert server.client().ping()


def test_no_other_process_gets_the_port_of_a_server_that_was_killed(redis_server):
    with Server(redis_server.binary) as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        assert server.start().client().ping()


def test_a_bad_directive_fails_immediately_and_shows_the_servers_log(redis_server):
    with pytest.raises(ServerFailed, match="Bad directive"):
        Server(redis_server.binary, no_such_directive=1).start()


def test_what_was_acknowledged_survives_kill_with_the_aof(own_server):
    own_server.client().set("kept", "1")
    before = own_server.pid
    own_server.restart(kill=True)
    assert own_server.pid != before
    assert not is_alive(before)
    assert own_server.client().get("kept") == b"1"


def test_without_the_aof_a_kill_loses_everything(redis_server):
    with Server(redis_server.binary) as server:
        server.client().set("lost", "1")
        server.restart(kill=True)
        assert server.client().get("lost") is None


def test_a_restart_can_change_settings(own_server):
    own_server.client().set("kept", "1")
    own_server.restart(kill=False, maxmemory="100mb")
    assert own_server.client().config_get("maxmemory") == {"maxmemory": str(100 * 1024 * 1024)}
    assert own_server.client().get("kept") == b"1"


def test_a_killed_server_refuses_connections(own_server):
    own_server.kill()
    assert not own_server.is_running
    with pytest.raises(redis.ConnectionError):
        own_server.client().ping()


def test_a_paused_server_replies_only_after_it_is_resumed(own_server):
    own_server.pause()
    with pytest.raises(redis.TimeoutError):
        own_server.client(socket_timeout=0.1).ping()
    own_server.resume()
    assert own_server.client().ping()


def test_a_paused_server_can_be_stopped(own_server):
    own_server.pause()
    own_server.stop()
    assert not own_server.is_running


def test_a_server_listens_on_its_unix_socket(own_server):
    assert own_server.client(unix_socket_path=own_server.unixsocket, host=None, port=None).ping()


def test_closing_twice_leaves_no_process_and_no_file(redis_server):
    server = Server(redis_server.binary).start()
    pid = server.pid
    server.close()
    server.close()
    assert not is_alive(pid)
    assert not server.directory.exists()


def test_a_server_with_a_password_accepts_its_own_client(redis_server):
    with Server(redis_server.binary, requirepass="secret") as server:
        assert server.client().ping()
        with pytest.raises(redis.AuthenticationError):
            server.client(password=None).ping()


def test_a_full_server_refuses_writes(redis_server):
    with Server(redis_server.binary, maxmemory="3mb", maxmemory_policy="noeviction") as server:
        writes = server.client().pipeline(transaction=False)
        for n in range(100):
            writes.set(f"key{n}", b"x" * 100_000)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            writes.execute()


def test_a_user_may_do_what_its_rules_say_and_no_more(redis_server):
    redis_server.add_user("app", "secret", "~jobqueue:*", "+get", "+set")
    client = redis_server.client(username="app", password="secret")
    client.set("jobqueue:x", "1")
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.set("other", "1")
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.delete("jobqueue:x")


def test_reset_removes_data_scripts_settings_and_users(redis_server):
    client = redis_server.client()
    before = client.config_get("*"), client.acl_list()
    sha = client.script_load("return 1")
    client.set("x", "1")
    client.config_set("maxmemory", "50mb")
    client.execute_command("REPLICAOF", "127.0.0.1", redis_server.port)
    redis_server.add_user("app", "secret", "+@all")
    pid = redis_server.pid

    redis_server.reset()

    client = redis_server.client()
    assert (client.config_get("*"), client.acl_list()) == before
    assert client.dbsize() == 0
    assert client.script_exists(sha) == [False]
    assert client.execute_command("ROLE")[0] == b"master"
    assert redis_server.pid == pid, "reset does not restart the server, which would be slow"


def test_reset_works_after_a_test_has_changed_the_password(redis_server):
    redis_server.add_user("default", "other", "+@all", "~*")
    redis_server.reset()
    assert redis_server.client().ping()


@pytest.mark.parametrize("damage", ["kill", "stop", "pause", "restart", "be_busy"])
def test_reset_restores_a_damaged_server(own_server, damage):
    own_server.reset()
    own_server.client().set("x", "1")
    if damage == "restart":
        own_server.restart(maxmemory="50mb")
    elif damage == "be_busy":
        own_server.client().config_set("lua-time-limit", 1)
        with pytest.raises(redis.TimeoutError):
            own_server.client(socket_timeout=0.1).eval("redis.call('SET', 'x', 2) while true do end", 0)
    else:
        getattr(own_server, damage)()

    own_server.reset()

    assert own_server.client().dbsize() == 0
    assert own_server.client().config_get("maxmemory") == {"maxmemory": "0"}


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_servers_stop_with_the_process_that_started_them(redis_server, how):
    """Also after kill -9, and also while a forked child of the process still runs."""
    program = f"""
import os, signal, sys, threading
from tests.support.servers import Server
servers = []
starter = threading.Thread(target=lambda: servers.append(Server({redis_server.binary!r}).start()))
starter.start()
starter.join()
server = servers[0]
child = os.fork()
if child == 0:
    signal.pause()
assert server.client().ping()
print(child, server.pid, server.directory, flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        child, pid, directory = process.stdout.readline().split()
        try:
            assert is_alive(int(pid)), "a server must not depend on the thread that started it"
            if how == "kill":
                process.kill()
            else:
                process.stdin.write("\n")
                process.stdin.flush()
            wait_until(lambda: not is_alive(int(pid)), 10, "the server is gone")
            wait_until(lambda: not Path(directory).exists(), 10, "its files are gone")
            assert is_alive(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_tls_server_needs_both_certificates(tls_server):
    assert tls_server.client().ping()
    assert isinstance(tls_server.tls, Certificates)
    with pytest.raises(redis.ConnectionError):
        tls_server.client(ssl_certfile=None, ssl_keyfile=None).ping()
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        tls_server.client(ssl_ca_certs=None).ping()
    with pytest.raises(redis.ConnectionError):
        tls_server.client(ssl=False).ping()


def test_sentinels_make_the_replica_the_master(sentinel: Sentinel):
    sentinel.client().set("x", "1")
    sentinel.client().execute_command("WAIT", 1, 5000)
    before = sentinel.master
    sentinel.failover()
    assert sentinel.master is not before
    assert sentinel.replica is before
    assert sentinel.client().get("x") == b"1"
    with pytest.raises(redis.ReadOnlyError):
        before.client().set("x", "2")


def test_sentinels_replace_a_killed_master(sentinel: Sentinel):
    before = sentinel.master
    before.kill()
    sentinel.wait_failed_over(before)
    assert sentinel.client().set("x", "1")


def test_a_client_finds_the_master_by_its_sentinels(sentinel: Sentinel):
    finder = redis.sentinel.Sentinel(sentinel.addresses)
    assert finder.discover_master(sentinel.master_name) == ("127.0.0.1", sentinel.master.port)
    for client in finder.sentinels:
        client.close()


def test_a_cluster_serves_all_its_slots(cluster: Cluster):
    client = cluster.client()
    for n in range(50):
        client.set(f"key{n}", n)
    assert len({cluster.node_of(f"key{n}") for n in range(50)}) == 3
    assert all(cluster.node_of(f"key{n}").client().get(f"key{n}") == b"%d" % n for n in range(50))


def test_a_cluster_refuses_keys_of_different_slots(cluster: Cluster):
    client = cluster.nodes[0].client()
    with pytest.raises(redis.ResponseError, match="same slot"):
        client.execute_command("RPOPLPUSH", "a", "b")


def test_servers_that_start_at_the_same_time_share_one_watchdog(monkeypatch):
    started = []
    popen = subprocess.Popen

    def slow_popen(*args, **options):
        others.wait()
        started.append(popen(*args, **options))
        return started[-1]

    others = threading.Barrier(2)
    monkeypatch.setattr(subprocess, "Popen", slow_popen)
    watchdog = Watchdog()
    # The second thread asks for the watchdog while the first one starts it.
    first = threading.Thread(target=watchdog.add, args=(2**22, os.devnull))
    first.start()
    second = threading.Thread(target=watchdog.remove, args=(2**22,))
    second.start()
    others.wait(20)
    for thread in (first, second):
        thread.join(20)
    watchdog.close()
    assert len(started) == 1
