"""What an idle pump sends to the server, and what can happen to the connections it waits on. That a waiter wakes on
every broker is tested by the conformance suite."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from fileq.brokers.redis import RedisBroker
from fileq.brokers.redis.waiting import RedisWaiter
from fileq.core.errors import BrokerUnavailable
from fileq.testing.conformance.builders import enqueue, foreign, raws_in, register
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_store import QUICK, Store, dump
from tests.support.servers import Server
from tests.support.waiting import wait_until

HIGH, LOW = "jobqueue:high_priority", "jobqueue:low_priority"
LONG_S = 20.0
SHORT_S = 0.05


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    """Waits of a minute, so that no test is woken by the end of one."""
    with Store(redis_server, **{"worker.brpoplpush_timeout": "1m"}) as store:
        yield store


@contextlib.contextmanager
def waiting(broker: RedisBroker) -> Iterator[RedisWaiter]:
    with contextlib.closing(broker.waiter()) as waiter:
        yield waiter


def blocked(store: Store) -> int:
    return int(store.client.info("clients")["blocked_clients"])


def blmoves(store: Store) -> int:
    return int(store.client.info("commandstats").get("cmdstat_blmove", {"calls": 0})["calls"])


# waking


@pytest.mark.parametrize("queue", [HIGH, LOW])
def test_a_push_by_another_program_to_either_queue_wakes_and_moves_nothing(store, queue):
    with waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        store.client.lpush(queue, foreign("a"), foreign("b"), foreign("c"))
        before = dump(store.client)
        assert waiter.wait(LONG_S) is True
        assert dump(store.client) == before, "still there, in the same order"


def test_a_wake_takes_nothing_from_a_long_queue(store):
    enqueue(store, *(f"job{n}" for n in range(50)))
    before = raws_in(store, "low")
    with waiting(store.broker) as waiter:
        for _ in range(10):
            waiter.arm()
            assert waiter.wait(LONG_S) is True
    assert raws_in(store, "low") == before


def test_many_waiters_on_one_queue_all_wake_and_one_claims(store):
    """No waiter stays blocked while the queue holds a job, and no job is lost."""
    others = [store.another() for _ in range(8)]
    with contextlib.ExitStack() as stack:
        waiters = [stack.enter_context(waiting(broker)) for broker in others]
        for waiter in waiters:
            waiter.arm()
        wait_until(lambda: blocked(store) == 2 * len(waiters))
        store.client.lpush(LOW, foreign("a"))
        assert [waiter.wait(LONG_S) for waiter in waiters] == [True] * len(waiters)
        assert store.client.llen(LOW) == 1
        for n, broker in enumerate(others):
            register(store, f"w{n}", broker=broker)
        claims = [broker.settle_and_claim([], [f"w{n}"]).claims for n, broker in enumerate(others)]
        assert sorted(map(len, claims)) == [0] * 7 + [1]


def test_the_descriptor_of_a_waiter_works_in_select_together_with_another(store):
    ours, theirs = socket.socketpair()
    with ours, theirs, waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        assert select.select([waiter, ours], [], [], 0)[0] == []
        theirs.send(b"x")
        assert select.select([waiter, ours], [], [], LONG_S)[0] == [ours]
        ours.recv(1)
        store.client.lpush(LOW, foreign("a"))
        assert select.select([waiter, ours], [], [], LONG_S)[0] == [waiter]
        assert waiter.wait(0) is True


def test_the_descriptor_of_a_waiter_works_in_epoll(store):
    with waiting(store.broker) as waiter, select.epoll() as poller:
        poller.register(waiter, select.EPOLLIN)
        waiter.arm()
        assert poller.poll(0) == []
        store.client.lpush(HIGH, foreign("a"))
        assert poller.poll(LONG_S) == [(waiter.fileno(), select.EPOLLIN)]


# what it sends


def test_an_idle_waiter_sends_only_one_blmove_per_queue_and_timeout(store):
    with FaultProxy(store.server.port) as proxy:
        broker = store.through(proxy.port, **{"worker.brpoplpush_timeout": "200ms"})
        proxy.reset_counts()
        with waiting(broker) as waiter:
            waiter.arm()
            began = time.monotonic()
            assert waiter.wait(1.0) is False
            rounds = (time.monotonic() - began) / 0.2
        commands = [request.split(b"\r\n")[2::2] for request in proxy.requests]
    high, low = ([b"BLMOVE", key, key, b"RIGHT", b"RIGHT", b"0.2"] for key in (HIGH.encode(), LOW.encode()))
    assert set(map(tuple, commands)) == {tuple(high), tuple(low)}
    assert 4 <= len(commands) <= 2 * (rounds + 1)


def test_arming_again_while_a_blmove_is_in_flight_sends_nothing(store):
    with waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        before = blmoves(store)
        for _ in range(100):
            waiter.arm()
        assert waiter.wait(SHORT_S) is False
        assert blmoves(store) == before
        assert blocked(store) == 2


def test_a_closed_waiter_leaves_no_connection_behind(store):
    before = store.client.info("clients")["connected_clients"]
    for _ in range(5):
        with waiting(store.broker) as waiter:
            waiter.arm()
    wait_until(lambda: store.client.info("clients")["connected_clients"] == before)


def test_the_longest_wait_is_the_configured_one(redis_server):
    with Store(redis_server, **{"worker.brpoplpush_timeout": "3s"}) as store, waiting(store.broker) as waiter:
        assert waiter.arm() == 3.0


# paused queues


def test_a_paused_queue_is_not_watched(store):
    with waiting(store.broker) as waiter:
        waiter.arm(frozenset({"low"}))
        wait_until(lambda: blocked(store) == 1)
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(SHORT_S) is False
        store.client.lpush(HIGH, foreign("b"))
        assert waiter.wait(LONG_S) is True


def test_a_queue_paused_while_it_is_watched_is_watched_again_when_resumed(store):
    with waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        waiter.arm(frozenset({"high", "low"}))
        wait_until(lambda: blocked(store) == 0)
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(SHORT_S) is False
        waiter.arm()
        assert waiter.wait(LONG_S) is True


# broken connections


def test_a_waiter_survives_a_restart_of_its_server(redis_server):
    with (
        Server(redis_server.binary) as server,
        Store(server, **{"worker.brpoplpush_timeout": "1m"}) as store,
        waiting(store.broker) as waiter,
    ):
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        server.kill()
        assert waiter.wait(LONG_S) is True, "the claim that follows meets the outage"
        with pytest.raises(BrokerUnavailable, match="is unavailable"):
            waiter.arm()
        server.start()
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        server.client().lpush(LOW, foreign("a"))
        assert waiter.wait(LONG_S) is True


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_blmove_that_another_client_ends_is_sent_again(store, how):
    with waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        for client in store.client.client_list():
            if client["cmd"] == "blmove":
                store.client.execute_command("CLIENT", "UNBLOCK", client["id"], how)
        wait_until(lambda: waiter.arm() and blocked(store) == 2)
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(LONG_S) is True


def test_a_blmove_whose_connection_is_killed_is_sent_again(store):
    with waiting(store.broker) as waiter:
        waiter.arm()
        wait_until(lambda: blocked(store) == 2)
        store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert waiter.wait(LONG_S) is True
        waiter.arm()
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(LONG_S) is True


def test_a_blmove_whose_reply_never_comes_is_sent_again(redis_server, monkeypatch):
    """A router or firewall lost the connection without closing or resetting it."""
    monkeypatch.setattr("fileq.brokers.redis.waiting.OVERDUE_S", 0.2)
    with FaultProxy(redis_server.port) as proxy, Store(redis_server) as store:
        broker = store.through(proxy.port, **{"worker.brpoplpush_timeout": "100ms"})
        with waiting(broker) as waiter:
            waiter.arm()
            proxy.delay_replies(600, b"BLMOVE", times=2)
            assert waiter.wait(0.15) is False
            assert waiter.wait(0.5) is False
            proxy.clear()
            store.client.lpush(LOW, foreign("a"))
            assert waiter.wait(LONG_S) is True


def test_half_a_reply_for_one_queue_does_not_delay_the_other(store):
    """A readable connection may hold only a part of a reply, or data of the TLS layer."""
    with FaultProxy(store.server.port) as proxy:
        broker = store.through(proxy.port)
        with waiting(broker) as waiter:
            stalled = proxy.stall_reply_when(HIGH.encode(), after=3)
            waiter.arm()
            wait_until(lambda: blocked(store) == 2)
            store.client.lpush(HIGH, foreign("a"))
            wait_until(lambda: stalled.fired == 1)
            began = time.monotonic()
            waiter.wait(SHORT_S)
            assert time.monotonic() - began < 2
            store.client.lpush(LOW, foreign("b"))
            assert waiter.wait(LONG_S) is True


def test_arming_a_waiter_on_a_server_that_hangs_times_out(redis_server):
    """The first exchange on a new connection has a time limit too."""
    redis_server.add_user("app", "pass", "+@all", "~*", "&*")
    with Store(redis_server, **QUICK, **{"redis.username": "app", "redis.password": "pass"}) as store:
        redis_server.pause()
        try:
            with waiting(store.broker) as waiter, pytest.raises(BrokerUnavailable, match="no answer within"):
                waiter.arm()
            with pytest.raises(BrokerUnavailable, match="no answer within"):
                store.broker.subscribe()
        finally:
            redis_server.resume()


# events


def test_a_subscription_whose_connection_ends_raises_unavailable(store):
    with contextlib.closing(store.broker.subscribe()) as subscription:
        assert subscription.get(0) is None
        store.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        with pytest.raises(BrokerUnavailable, match="is unavailable"):
            subscription.get(LONG_S)


def test_a_subscription_may_wait_longer_than_the_read_timeout(redis_server):
    with Store(redis_server, **QUICK) as store, contextlib.closing(store.broker.subscribe()) as subscription:
        assert subscription.get(0.4) is None
        enqueue(store, "a")
        assert subscription.get(LONG_S) is not None
