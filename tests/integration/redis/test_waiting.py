"""What an idle pump sends to the server, and what can happen to the connections it waits on. That a waiter wakes on
every broker is tested by the conformance suite."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from fileq.brokers.redis import RedisBroker
from fileq.brokers.redis.queues import FEW_WORKERS
from fileq.brokers.redis.waiting import RedisWaiter
from fileq.core.errors import BrokerUnavailable
from fileq.testing.conformance.builders import claims_of, enqueue, foreign, raws_in, worker_info
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_store import QUICK, Store, dump
from tests.support.servers import Server
from tests.support.waiting import wait_until

HIGH, LOW = "jobqueue:high_priority", "jobqueue:low_priority"
WATCH = "jobqueue:watch:high,low"
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


def commands(store: Store) -> int:
    return int(store.client.info("stats")["total_commands_processed"])


@contextlib.contextmanager
def fleet(store: Store, size: int) -> Iterator[list[RedisWaiter]]:
    """Armed waiters of as many processes; the first one has the watch."""
    with contextlib.ExitStack() as stack:
        waiters = [stack.enter_context(waiting(store.another())) for _ in range(size)]
        for waiter in waiters:
            waiter.arm()
        wait_until(lambda: blocked(store) == size - 1)
        yield waiters


def woken(waiters: list[RedisWaiter]) -> list[RedisWaiter]:
    """Those that have something to take, once one of them has."""
    assert select.select(waiters, [], [], LONG_S)[0]
    return [waiter for waiter in waiters if waiter.take()]


# waking


@pytest.mark.parametrize("queue", [HIGH, LOW])
def test_a_push_by_another_program_to_either_queue_wakes_and_moves_nothing(store, queue):
    with waiting(store.broker) as waiter:
        waiter.arm()
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


@pytest.mark.parametrize("is_foreign", [True, False], ids=["LPUSH", "enqueue"])
def test_one_push_wakes_one_of_many_waiters(store, is_foreign: bool) -> None:
    with fleet(store, 9) as waiters:
        for n in range(3):
            if is_foreign:
                store.client.lpush(LOW, foreign(f"job{n}"))
            else:
                enqueue(store, f"job{n}")
            assert woken(waiters) == [waiters[0]], "the one with the watch"
            assert blocked(store) == 8
            assert len(claims_of(store, f"slot{n}")) == 1
            waiters[0].arm()


def test_a_burst_wakes_as_many_waiters_as_it_takes(store) -> None:
    """Each has one slot, and claims as soon as it is woken."""
    with fleet(store, 9) as waiters:
        store.client.lpush(LOW, *(foreign(f"job{n}") for n in range(6)))
        claims, wakes = [], 0
        while store.client.llen(LOW):
            for _ in woken(waiters):
                wakes += 1
                claims += claims_of(store, f"{len(claims)}-{wakes}")
        assert sorted(claim.id for claim in claims) == [f"job{n}" for n in range(6)]
        assert wakes <= 2 * len(claims)


def test_a_claim_of_a_stopped_worker_hands_nothing_on(store) -> None:
    """Two workers that can't claim would wake each other for ever."""
    enqueue(store, "a", "b")
    assert store.broker.settle_and_claim([], ["unknown"]).claims == ()
    assert store.client.keys("jobqueue:wake:*") == []


def test_the_end_of_a_pause_wakes_a_waiter_without_the_watch(store) -> None:
    """A worker with other queues may have the watch of its own."""
    with fleet(store, 2) as [_, waiter]:
        store.broker.pause("low")
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(SHORT_S) is False
        store.broker.resume("low")
        assert waiter.wait(LONG_S) is True


def test_a_call_of_resume_that_is_repeated_leaves_one_token(store) -> None:
    store.broker.pause("low")
    for _ in range(3):
        store.broker.resume("low")
    assert store.client.llen("jobqueue:wake:low") == 1


# who has the watch


def test_the_watch_goes_to_another_waiter_when_its_holder_is_closed(store) -> None:
    with fleet(store, 3) as waiters:
        holder = store.client.get(WATCH)
        waiters[0].close()
        [other] = [waiter for waiter in waiters[1:] if waiter in select.select(waiters[1:], [], [], LONG_S)[0]]
        assert other.take() is False, "it is only to look"
        other.arm()
        assert store.client.get(WATCH) not in (None, holder)
        store.client.lpush(LOW, foreign("a"))
        assert other.wait(LONG_S) is True


def test_a_holder_that_closes_with_a_job_in_sight_wakes_another(store) -> None:
    with fleet(store, 2) as [first, second]:
        store.client.lpush(LOW, foreign("a"))
        assert select.select([first], [], [], LONG_S)[0]
        first.close()
        assert second.wait(LONG_S) is True


def test_a_token_that_its_waiter_did_not_take_goes_to_another(store) -> None:
    with fleet(store, 3) as [first, *others]:
        store.client.lpush(LOW, foreign("a"), foreign("b"))
        assert len(claims_of(store, "slot")) == 1
        [late] = select.select(others, [], [], LONG_S)[0]
        [other] = [waiter for waiter in others if waiter is not late]
        first.take()
        late.close()
        assert other.wait(LONG_S) is True


@pytest.mark.parametrize("loses", ["the watch", "its token"])
def test_what_is_lost_with_a_killed_waiter_costs_one_wait(redis_server, loses: str) -> None:
    with Store(redis_server, **{"worker.brpoplpush_timeout": "300ms"}) as store, fleet(store, 2) as [first, second]:
        if loses == "the watch":
            store.client.set(WATCH, "a process that is gone", px=600)
        else:
            assert first.wait(0) is False
        store.client.lpush(LOW, foreign("a"))
        assert second.wait(LONG_S) is True, "nobody else looks at the queue"


def test_two_holders_of_the_watch_become_one(redis_server) -> None:
    """The lease was lost while its holder was frozen, or a failover has lost it."""
    with (
        Store(redis_server, **{"worker.brpoplpush_timeout": "100ms"}) as store,
        waiting(store.another()) as first,
        waiting(store.another()) as second,
    ):
        first.arm()
        store.client.delete(WATCH)
        second.arm()
        assert blocked(store) == 0, "both have it"
        first.take()  # its watch has changed
        wait_until(lambda: first.arm() and second.arm() and blocked(store) == 1)
        store.client.lpush(LOW, foreign("a"))
        assert woken([first, second])


def test_the_watch_ends_soon_after_its_holder(redis_server) -> None:
    with Store(redis_server, **{"worker.brpoplpush_timeout": "1s"}) as store, waiting(store.broker) as waiter:
        waiter.arm()
        assert 2000 < store.client.pttl(WATCH) <= 3000


# what it sends


def test_an_idle_waiter_sends_two_commands_a_wait(redis_server) -> None:
    with Store(redis_server, **{"worker.brpoplpush_timeout": "200ms"}) as store, fleet(store, 2) as waiters:
        for waiter in waiters:
            began, before = time.monotonic(), commands(store)
            assert waiter.wait(1.0) is False
            rounds = (time.monotonic() - began) / 0.2
            # The script runs six commands: two of its own, two for each queue. INFO is one, the BLPOP another.
            assert commands(store) - before <= 8 * (rounds + 1) + 1


def test_in_a_large_fleet_each_standby_waits_longer(redis_server) -> None:
    with Store(redis_server, **{"worker.brpoplpush_timeout": "200ms"}) as store:
        infos = {f"w{n}": worker_info() for n in range(3 * FEW_WORKERS)}
        store.broker.register(infos)
        store.broker.renew([("w0", b"")])
        assert store.broker.patience == 3.0
        store.broker.renew([("w0", b""), ("w1", b"")])
        assert store.broker.patience == 1.5, "each of these workers has two slots"
        with waiting(store.another()) as holder, waiting(store.broker) as standby:
            assert holder.arm() == 0.2
            began_s = time.monotonic()
            assert standby.arm() == pytest.approx(0.3)
            assert select.select([standby], [], [], LONG_S)[0], "its BLPOP has ended"
            assert time.monotonic() - began_s >= 0.3
        store.broker.deregister(list(infos)[1:])
        store.broker.renew([("w0", b"")])
        assert store.broker.patience == 1.0


def test_arming_again_sends_nothing(store):
    with fleet(store, 2) as waiters:
        before = commands(store)
        for _ in range(100):
            for waiter in waiters:
                waiter.arm()
        assert commands(store) == before + 1, "this question itself"


def test_a_closed_waiter_leaves_no_connection_behind(store):
    before = store.client.info("clients")["connected_clients"]
    for _ in range(5):
        with waiting(store.broker) as waiter:
            waiter.arm()
    wait_until(lambda: store.client.info("clients")["connected_clients"] == before)


def test_the_longest_wait_is_the_configured_one(redis_server):
    with Store(redis_server, **{"worker.brpoplpush_timeout": "3s"}) as store, waiting(store.broker) as waiter:
        assert waiter.arm() == 3.0


def test_the_descriptor_of_a_waiter_works_in_select_together_with_another(store):
    ours, theirs = socket.socketpair()
    with ours, theirs, waiting(store.broker) as waiter:
        waiter.arm()
        assert select.select([waiter, ours], [], [], 0)[0] == []
        theirs.send(b"x")
        assert select.select([waiter, ours], [], [], LONG_S)[0] == [ours]
        ours.recv(1)
        store.client.lpush(LOW, foreign("a"))
        assert select.select([waiter, ours], [], [], LONG_S)[0] == [waiter]
        assert waiter.wait(0) is True


def test_where_the_server_does_not_report_changes_one_waiter_polls(redis_server) -> None:
    user = ("app", "pass", "+@all", "-client|tracking", "~*", "&*")
    redis_server.add_user(*user)
    settings = {"redis.username": "app", "redis.password": "pass", "worker.brpoplpush_timeout": "1m"}
    with Store(redis_server, **settings) as store, fleet(store, 2) as [first, second]:
        assert (first.arm(), second.arm()) == (0.02, 60.0)
        store.client.lpush(LOW, foreign("a"))
        assert first.wait(LONG_S) is True


# broken connections


def test_a_waiter_survives_a_restart_of_its_server(redis_server):
    with (
        Server(redis_server.binary) as server,
        Store(server, **{"worker.brpoplpush_timeout": "1m"}) as store,
        waiting(store.broker) as waiter,
    ):
        waiter.arm()
        server.kill()
        assert waiter.wait(LONG_S) is True, "the claim that follows meets the outage"
        with pytest.raises(BrokerUnavailable, match="is unavailable"):
            waiter.arm()
        server.start()
        waiter.arm()
        server.client().lpush(LOW, foreign("a"))
        assert waiter.wait(LONG_S) is True


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_wait_that_another_client_ends_begins_again(store, how):
    with fleet(store, 2) as [_, waiter]:
        for client in store.client.client_list():
            if client["cmd"] == "blpop":
                store.client.execute_command("CLIENT", "UNBLOCK", client["id"], how)
        wait_until(lambda: waiter.take() or (waiter.arm() and blocked(store) == 1))
        store.client.lpush("jobqueue:wake:low", 1)
        assert waiter.wait(LONG_S) is True


def test_a_waiter_whose_connection_is_killed_waits_again(store):
    with fleet(store, 2) as waiters:
        store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for waiter in waiters:
            assert waiter.wait(LONG_S) is True
            waiter.arm()
        store.client.lpush(LOW, foreign("a"))
        assert woken(waiters) == waiters[:1]


def test_a_wait_whose_end_never_comes_begins_again(redis_server, monkeypatch):
    """A router or firewall lost the connection without closing or resetting it."""
    monkeypatch.setattr("fileq.brokers.redis.waiting.OVERDUE_S", 0.2)
    with FaultProxy(redis_server.port) as proxy, Store(redis_server) as store, waiting(store.broker) as first:
        first.arm()
        broker = store.through(proxy.port, **{"worker.brpoplpush_timeout": "100ms"})
        with waiting(broker) as waiter:
            proxy.delay_replies(600, b"BLPOP", times=1)
            waiter.arm()
            assert waiter.wait(0.15) is False
            assert waiter.wait(0.5) is False
            proxy.clear()
            store.client.lpush(LOW, foreign("a"))
            assert waiter.wait(LONG_S) is True


def test_a_server_that_hangs_while_it_is_watched_is_noticed(redis_server) -> None:
    settings = {**QUICK, "worker.brpoplpush_timeout": "100ms"}
    with Store(redis_server, **settings) as store, waiting(store.broker) as waiter:
        waiter.arm()
        redis_server.pause()
        try:
            with pytest.raises(BrokerUnavailable, match="no answer within"):
                waiter.wait(LONG_S)
        finally:
            redis_server.resume()


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


def test_a_server_without_scripts_gets_them(store) -> None:
    store.client.script_flush()
    with waiting(store.broker) as waiter:
        waiter.arm()
        store.client.lpush(LOW, foreign("a"))
        assert waiter.wait(LONG_S) is True


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
