"""The fault proxy itself: what it reports is what the server and the client experience. Other tests rely on it to prove
that calls are idempotent."""

import socket
import threading
import time

import pytest
import redis

from tests.support.fault_proxy import FaultProxy
from tests.support.servers import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(redis_server, proxy):
    """A connected client behind the proxy, its handshake not counted."""
    client = redis_server.client(port=proxy.port)
    client.ping()
    proxy.reset_counts()
    return client


@pytest.fixture
def direct(redis_server):
    return redis_server.client()


def in_background(call, *args):
    """Run the call in a thread; after join() its attribute `outcome` holds the result or the error."""

    def run():
        try:
            thread.outcome = call(*args)
        except redis.RedisError as error:
            thread.outcome = error

    thread = threading.Thread(target=run, daemon=True)
    thread.outcome = None
    thread.start()
    return thread


def test_without_faults_everything_passes(client, proxy):
    value = bytes(range(256)) * 4000
    client.set("big", value)
    assert client.get("big") == value
    assert client.execute_command("INCR", "n") == 1


def test_each_command_is_a_round_trip(client, proxy):
    for _ in range(3):
        client.incr("n")
    assert proxy.round_trips == 3
    assert len(proxy.requests) == 3


def test_a_pipeline_is_one_round_trip(client, proxy):
    pipeline = client.pipeline()
    for _ in range(20):
        pipeline.incr("n")
    pipeline.execute()
    assert proxy.round_trips == 1
    assert len(proxy.requests) == 22, "MULTI, the twenty, EXEC"


def test_a_command_of_a_megabyte_is_one_round_trip(client, proxy):
    client.execute_command("RPUSH", "list", *[b"x" * 1000] * 1000)
    assert proxy.round_trips == 1
    assert len(proxy.requests) == 1


def test_a_flight_is_not_over_while_a_request_is_half_sent(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"PING\r\nPI")
        assert raw.recv(100) == b"+PONG\r\n"
        raw.sendall(b"NG\r\n")
        assert raw.recv(100) == b"+PONG\r\n"
    assert proxy.round_trips == 1
    assert proxy.requests == [b"PING\r\n", b"PING\r\n"]


def test_replies_of_every_type_are_counted(client, proxy):
    client.hset("hash", mapping={"a": 1, "b": 2})
    client.sadd("set", "a", "b")
    assert client.hgetall("hash") == {b"a": b"1", b"b": b"2"}
    assert client.smembers("set") == {b"a", b"b"}
    assert client.lrange("nothing", 0, -1) == []
    assert client.get("nothing") is None
    with pytest.raises(redis.ResponseError):
        client.incr("hash")
    assert client.eval("return {1, {2, {'three'}}, false}", 0) == [1, [2, [b"three"]], None]
    assert proxy.round_trips == 8


def test_lines_that_are_not_arrays_are_requests_too(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"PING\r\n")
        assert raw.recv(100) == b"+PONG\r\n"
    assert proxy.requests == [b"PING\r\n"]


def test_messages_of_a_subscription_pass(redis_server, proxy, direct):
    with redis_server.client(port=proxy.port).pubsub() as listener:
        listener.subscribe("news")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        direct.publish("news", "hello")
        assert listener.get_message(timeout=5)["data"] == b"hello"


def test_a_dropped_reply_leaves_the_command_executed(client, proxy, direct):
    fault = proxy.drop_reply_when(b"INCR")
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert direct.get("n") == b"1"
    assert fault.fired == 1
    assert client.incr("n") == 2, "once only"


def test_a_dropped_pipeline_is_executed_to_its_end_and_nothing_delivered(client, proxy, direct):
    fault = proxy.drop_reply_when(b"second")
    pipeline = client.pipeline(transaction=False).incr("first").incr("second").incr("third")
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    assert direct.mget("first", "second", "third") == [b"1", b"1", b"1"]
    assert fault.fired == 1


def test_a_blocking_commands_reply_is_dropped_only_once_there_is_one(client, proxy, direct):
    fault = proxy.drop_reply_when(b"BLMOVE")
    waiting = in_background(client.blmove, "from", "to", 5)
    wait_until(lambda: direct.info("clients")["blocked_clients"] == 1)
    assert fault.fired == 0
    direct.lpush("from", "x")
    waiting.join(5)
    assert isinstance(waiting.outcome, redis.ConnectionError)
    assert direct.lrange("to", 0, -1) == [b"x"]
    assert fault.fired == 1


def test_a_cut_reply_arrives_in_part_and_the_command_was_executed(proxy, direct):
    fault = proxy.cut_reply_when(b"GET", after=4)
    direct.set("x", "value")
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"GET x\r\n")
        assert b"".join(iter(lambda: raw.recv(100), b"")) == b"$5\r\n"
    assert fault.fired == 1


def test_a_stalled_reply_arrives_in_part_and_the_connection_stays_open(proxy, direct):
    proxy.stall_reply_when(b"GET", after=4)
    direct.set("x", "value")
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"GET x\r\n")
        assert raw.recv(100) == b"$5\r\n"
        raw.settimeout(0.05)
        with pytest.raises(TimeoutError):
            raw.recv(100)


def test_a_fault_can_act_on_the_nth_matching_request(client, proxy, direct):
    fault = proxy.drop_reply_when(lambda request: b"INCR" in request, nth=3, times=2)
    assert [client.incr("n"), client.incr("n")] == [1, 2]
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
    assert client.incr("n") == 5
    assert fault.fired == 2


def test_a_reset_keeps_the_request_from_the_server(client, proxy, direct):
    fault = proxy.reset_when(b"INCR")
    with pytest.raises(redis.ConnectionError, match="reset"):
        client.incr("n")
    assert direct.get("n") is None
    assert fault.fired == 1


def test_reset_all_resets_idle_connections(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"PING\r\n")
        assert raw.recv(100) == b"+PONG\r\n"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            raw.recv(100)
    wait_until(lambda: proxy.open_connections == 0)


def test_a_delayed_reply_comes_late_but_the_command_is_executed_at_once(client, proxy, direct):
    fault = proxy.delay_replies(0.2, b"INCR", times=1)
    began = time.monotonic()
    assert client.incr("n") == 1
    assert time.monotonic() - began >= 0.2
    assert fault.fired == 1

    proxy.delay_replies(60, b"INCR", times=1)
    late = in_background(client.incr, "n")
    wait_until(lambda: direct.get("n") == b"2")
    proxy.reset_all()
    late.join(5)
    assert isinstance(late.outcome, redis.ConnectionError), "the reply was not delivered"


def test_a_delayed_request_is_executed_late(client, proxy, direct):
    fault = proxy.delay_requests(0.2, b"INCR")
    began = time.monotonic()
    assert client.incr("n") == 1
    assert time.monotonic() - began >= 0.2
    assert fault.fired == 1
    proxy.clear()
    client.incr("n")
    assert fault.fired == 1


def test_a_held_request_is_executed_after_its_client_has_given_up(redis_server, proxy, direct):
    impatient = redis_server.client(port=proxy.port, socket_timeout=0.1)
    hold = proxy.hold_when(b"INCR")
    with pytest.raises(redis.TimeoutError):
        impatient.incr("n")
    impatient.close()
    hold.wait_caught()
    assert direct.get("n") is None
    hold.release()
    assert direct.get("n") == b"1"
    wait_until(lambda: proxy.open_connections == 0)


def test_a_held_request_outlives_the_clients_connection(client, proxy, direct):
    hold = proxy.hold_when(b"INCR")
    waiting = in_background(client.incr, "n")
    hold.cut_client()
    waiting.join(5)
    assert isinstance(waiting.outcome, redis.ConnectionError)
    assert direct.get("n") is None
    hold.release()
    assert direct.get("n") == b"1"


def test_a_held_request_released_in_time_is_answered(client, proxy):
    hold = proxy.hold_when(b"INCR")
    waiting = in_background(client.incr, "n")
    hold.release()
    waiting.join(5)
    assert waiting.outcome == 1
    assert client.incr("n") == 2, "the connection can still be used"
    assert hold.fired == 1


def test_a_large_reply_to_a_client_that_has_gone_still_counts_as_answered(client, proxy, direct):
    direct.set("big", b"x" * 3_000_000)
    hold = proxy.hold_when(b"GET")
    waiting = in_background(client.get, "big")
    hold.cut_client()
    waiting.join(5)
    hold.release()


def test_a_request_still_held_at_the_end_is_never_delivered(redis_server, direct):
    with FaultProxy(redis_server.port) as proxy:
        hold = proxy.hold_when(b"INCR")
        waiting = in_background(redis_server.client(port=proxy.port).incr, "n")
        hold.wait_caught()
    waiting.join(5)
    assert isinstance(waiting.outcome, redis.ConnectionError)
    assert direct.get("n") is None


def test_in_a_black_hole_nothing_arrives_on_either_side(redis_server, client, proxy, direct):
    proxy.black_hole()
    lost = in_background(client.incr, "n")
    wait_until(lambda: proxy.swallowed == 1)
    with pytest.raises(redis.TimeoutError):
        redis_server.client(port=proxy.port, socket_timeout=0.1).ping()
    assert direct.get("n") is None
    proxy.restore()
    lost.join(5)
    assert isinstance(lost.outcome, redis.ConnectionError)
    assert client.incr("n") == 1


def test_a_black_hole_swallows_the_end_of_a_connection_too(redis_server, proxy, direct):
    partitioned = redis_server.client(port=proxy.port)
    waiting = in_background(partitioned.blmove, "from", "to", 30)
    wait_until(lambda: direct.info("clients")["blocked_clients"] == 1)
    proxy.black_hole()
    before = proxy.swallowed
    partitioned.connection_pool.disconnect()
    waiting.join(5)
    wait_until(lambda: proxy.swallowed > before)
    direct.lpush("from", "x")
    assert direct.lrange("to", 0, -1) == [b"x"], "for the server the client was still connected"


def test_a_server_that_is_gone_ends_its_connections(redis_server, client, proxy):
    redis_server.kill()
    wait_until(lambda: proxy.open_connections == 0)
    with pytest.raises(redis.ConnectionError):
        client.ping()
    redis_server.start()
    assert client.ping()


def test_without_a_server_every_connection_is_reset(redis_server):
    with FaultProxy(free_port()) as proxy, pytest.raises(redis.ConnectionError):
        redis_server.client(port=proxy.port).ping()


def test_a_closed_proxy_leaves_no_thread_and_no_listener(redis_server):
    before = threading.active_count()
    with FaultProxy(redis_server.port) as proxy:
        clients = [redis_server.client(port=proxy.port) for _ in range(5)]
        assert all(client.ping() for client in clients)
        assert threading.active_count() == before + 11
    assert threading.active_count() == before
    with pytest.raises(redis.ConnectionError):
        redis_server.client(port=proxy.port).ping()


def test_many_connections_at_once_are_served_and_counted(redis_server, proxy, direct):
    threads = [in_background(redis_server.client(port=proxy.port).incr, "n") for _ in range(20)]
    for thread in threads:
        thread.join(10)
    assert sorted(thread.outcome for thread in threads) == list(range(1, 21))
    assert sum(b"INCR" in request for request in proxy.requests) == 20
