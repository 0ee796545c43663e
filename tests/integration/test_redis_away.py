"""What a server says when it can't serve now. Each of these is the broker being away, never a refusal and never a
job's failure: nothing has changed, and the same broker works again as soon as the server does."""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from fileq.brokers.redis import open_redis
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    an_entry,
    enqueue,
    failed,
    ids_in,
    names,
    raws_in,
    reap_all,
    recovered,
    register,
    running,
    settle,
)
from tests.support.redis_store import QUICK, VERBS, Store, claimed, config_on, dump, opened, whole_life
from tests.support.servers import Server, free_port
from tests.support.waiting import wait_until

SOME_CALLS = {
    "enqueue": lambda store, claim: store.broker.enqueue([an_entry("new")]),
    "claim": lambda store, claim: store.broker.settle_and_claim([], ["w2"]),
    "complete": lambda store, claim: store.broker.settle_and_claim([complete(claim)], []),
    "settle_and_claim": lambda store, claim: store.broker.settle_and_claim([failed(claim)], ["w1", "w2"]),
    "renew": lambda store, claim: store.broker.renew([("w1", claim.raw)]),
    "promote": lambda store, claim: store.broker.promote(),
    "reap": lambda store, claim: store.broker.reap("w1", [recovered(claim)]),
    "register": lambda store, claim: register(store, "w3"),
    "deregister": lambda store, claim: store.broker.deregister(["w1"]),
    "cancel by id": lambda store, claim: store.broker.cancel(["a"]),
    "pause": lambda store, claim: store.broker.pause("low"),
}


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


# ways to be away: each enters with a healthy server and leaves one behind


@contextlib.contextmanager
def read_only(store: Store) -> Iterator[None]:
    store.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    yield
    store.client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def stale_replica(store: Store) -> Iterator[None]:
    store.client.config_set("replica-serve-stale-data", "no")
    with read_only(store):
        yield
    store.client.config_set("replica-serve-stale-data", "yes")


@contextlib.contextmanager
def busy(store: Store) -> Iterator[None]:
    """Somebody's script runs and does not end."""
    store.client.config_set("busy-reply-threshold", 10)
    looper = store.server.client(socket_timeout=60)

    def loop() -> None:
        with contextlib.suppress(redis.ResponseError):  # killed, as it should be
            looper.eval("while true do end", 0)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    wait_until(lambda: says(store.client.ping, "BUSY"), what="the server is busy")
    yield
    store.client.execute_command("SCRIPT", "KILL")
    thread.join(10)


@contextlib.contextmanager
def loading(store: Store) -> Iterator[None]:
    """The data are read from disk, slowly."""
    store.client.config_set("save", "")
    store.client.config_set("rdbcompression", "no")
    store.client.config_set("key-load-delay", 3_000)  # µs a key
    store.client.config_set("loading-process-events-interval-bytes", 1024)
    with store.client.pipeline(transaction=False) as many:
        for n in range(1000):
            many.set(f"ballast:{n}", "x" * 1000)
        many.execute()
    reloader = store.server.client(socket_timeout=60)
    thread = threading.Thread(target=reloader.execute_command, args=("DEBUG", "RELOAD"), daemon=True)
    thread.start()
    wait_until(lambda: says(store.client.get, "loading", "x"), what="the server is loading")
    yield
    store.client.config_set("key-load-delay", 0)
    thread.join(10)
    store.client.delete(*(f"ballast:{n}" for n in range(1000)))


@contextlib.contextmanager
def unable_to_save(store: Store) -> Iterator[None]:
    """The last snapshot failed, and the server was told to stop writing then."""
    in_the_way = store.server.directory / "dump.rdb"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    store.client.config_set("save", "3600 1")
    store.client.bgsave()
    wait_until(lambda: store.client.info("persistence")["rdb_last_bgsave_status"] == "err", what="a failed snapshot")
    yield
    in_the_way.rmdir()
    store.client.config_set("save", "")


@contextlib.contextmanager
def without_replicas(store: Store) -> Iterator[None]:
    store.client.config_set("min-replicas-to-write", 1)
    yield
    store.client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """A password was set that this broker does not have; its connections were cut."""
    store.client.config_set("requirepass", "new")
    store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    store.client.config_set("requirepass", "")


@contextlib.contextmanager
def crowded(store: Store) -> Iterator[None]:
    store.client.ping()
    store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    store.client.config_set("maxclients", 1)
    yield
    store.client.config_set("maxclients", 1000)


AWAY = {
    "READONLY": (read_only, "read only replica"),
    "MASTERDOWN": (stale_replica, "read only replica|link with (master|primary) is down"),
    "BUSY": (busy, "BUSY"),
    "LOADING": (loading, "loading"),
    "MISCONF": (unable_to_save, "MISCONF"),
    "NOREPLICAS": (without_replicas, "NOREPLICAS"),
    "NOAUTH": (locked, "Authentication required|unauthenticated|closed|reset|broken pipe"),
    "max clients": (crowded, "max number of clients|not ready|closed|reset|broken pipe"),
}


def says(call: Callable[..., object], what: str, *args: object) -> bool:
    try:
        call(*args)
    except redis.RedisError as error:
        return what.lower() in str(error).lower()
    return False


@pytest.mark.parametrize("how", AWAY)
def test_a_server_that_cannot_serve_now_is_away_and_nothing_changes(store, how):
    away, words = AWAY[how]
    claim = running(store, "a")
    enqueue(store, "b", "c")
    register(store, "w2")
    before = dump(store.client)
    with away(store):
        for call in SOME_CALLS.values():
            with pytest.raises(BrokerUnavailable, match=f"(?i)is away: .*({words})"):
                call(store, claim)
    assert dump(store.client) == before
    assert settle(store, complete(claim)) is SettleResult.DONE
    assert [c.id for c in store.broker.settle_and_claim([], ["w1", "w2"]).claims] == ["b", "c"]


@pytest.mark.parametrize("how", ["READONLY", "MISCONF", "NOREPLICAS"])
def test_a_server_that_only_refuses_to_write_can_be_looked_at(store, how):
    away, _ = AWAY[how]
    running(store, "a")
    enqueue(store, "b")
    with away(store):
        assert store.broker.census().running == 1
        assert ids_in(store, "low") == ["b"]
        assert store.broker.records(["a"])[0].state == "running"


@pytest.mark.parametrize("how", ["MASTERDOWN", "BUSY", "LOADING", "NOAUTH", "max clients"])
def test_a_server_that_serves_nobody_can_neither_be_looked_at_nor_waited_for(store, how):
    away, _ = AWAY[how]
    with contextlib.closing(store.broker.waiter()) as waiter:
        with away(store):
            with pytest.raises(BrokerUnavailable, match="is away"):
                store.broker.census()
            with contextlib.suppress(BrokerUnavailable):
                waiter.arm()
                assert waiter.wait(10) is True, "the turn that follows is told the reason"
        waiter.arm()
        enqueue(store, "a")
        assert waiter.wait(10) is True


def test_a_server_that_forgot_its_scripts_is_given_them_again(store):
    for verb in VERBS:
        if verb.name != "promote":  # it sets the clock
            call = verb.prepare(store)
            store.client.script_flush()
            call(store.broker)
            store.empty()


def test_a_server_that_hangs_is_away_once_the_time_is_up(redis_server):
    with Store(redis_server, **QUICK) as store:
        enqueue(store, "a")
        redis_server.pause()
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="Timeout"):
            enqueue(store, "b")
        assert time.monotonic() - began < 5
        redis_server.resume()
        wait_until(lambda: says_enqueued(store, "c"))
        assert "a" in ids_in(store, "low")


def says_enqueued(store: Store, id: str) -> bool:
    with contextlib.suppress(BrokerUnavailable):
        enqueue(store, id)
        return True
    return False


def test_a_password_that_is_missing_is_asked_for_at_start(store):
    with locked(store), pytest.raises(BrokerUnavailable, match="is away: Authentication required"):
        store.another()


def test_nobody_there_is_away(redis_server):
    with pytest.raises(BrokerUnavailable, match="is away"):
        open_redis(config_on(**{"redis.addr": f"127.0.0.1:{free_port()}"}))


def test_an_address_that_does_not_resolve_is_away():
    with pytest.raises(BrokerUnavailable, match="is away"):
        open_redis(config_on(**{"redis.addr": "nowhere.invalid:6379"}))


# out of memory


@contextlib.contextmanager
def full(store: Store) -> Iterator[None]:
    store.client.config_set("maxmemory", 1)
    yield
    store.client.config_set("maxmemory", 0)


def test_a_full_server_refuses_new_jobs_as_away_and_drains_what_it_has(store):
    """Otherwise it would stay full for ever."""
    enqueue(store, *names(40))
    enqueue(store, "later", delay_ms=1)
    register(store, "w1", "w2")
    with full(store):
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match=r"is away: .*maxmemory"):
                enqueue(store, "new")
        done = 0
        while claims := store.broker.settle_and_claim([], ["w1", "w2"]).claims:
            assert {r.hold for r in store.broker.renew([(c.slot, c.raw) for c in claims])} == {"held"}
            answers = store.broker.settle_and_claim([complete(c) for c in claims], []).settled
            done += answers.count(SettleResult.DONE)
            store.broker.promote()
        assert done == 41
        assert store.broker.census().drift == 0
    enqueue(store, "new")
    assert ids_in(store, "low") == ["new"]


GO_ON_WHEN_FULL = {verb.name for verb in VERBS} - {"enqueue", "revive", "pause", "restore", "create_record"}


def test_a_full_server_still_lets_every_job_end(redis_server):
    """Only what brings in more is refused: enqueue, revive, and pause, which is a plain command."""
    with opened(redis_server) as store:
        for verb in VERBS:
            call = verb.prepare(store)
            before = dump(store.client)
            with full(store):
                if verb.name in GO_ON_WHEN_FULL:
                    call(store.broker)
                else:
                    with pytest.raises(BrokerUnavailable, match="maxmemory"):
                        call(store.broker)
                    assert dump(store.client) == before
            store.empty()


def test_while_the_server_is_full_a_waiter_lets_the_pump_look_every_20_ms(store):
    """Its own wait is refused at once then; were that taken for news, the pump would spin."""
    with contextlib.closing(store.broker.waiter()) as waiter, full(store):
        looks, end = 0, time.monotonic() + 0.4
        while time.monotonic() < end:
            select.select([waiter], [], [], waiter.arm())
            looks += 1
        assert 4 <= looks <= 3 * 20 + 3, "one after each refusal, one after the pause"
        began = time.monotonic()
        assert [waiter.wait(10) for _ in range(5)] == [True] * 5
        assert 0.05 < time.monotonic() - began < 5


def test_a_waiter_waits_again_once_the_server_has_room(store):
    with contextlib.closing(store.broker.waiter()) as waiter:
        with full(store):
            waiter.arm()
            assert waiter.wait(10) is True
        wait_until(lambda: waiter.arm() > 0.02 and not waiter.wait(0.03))
        enqueue(store, "a")
        assert waiter.wait(10) is True


# death


@pytest.fixture
def durable(redis_server) -> Iterator[Store]:
    """A server of the same kind that writes before it answers."""
    with Server(redis_server.binary, aof=True) as server, Store(server) as store:
        yield store


def test_everything_acknowledged_survives_kill_9_and_the_same_broker_goes_on(durable):
    store = durable
    claim, other = claimed(store, "w1", "w2")
    enqueue(store, "waiting", queue="high")
    enqueue(store, "later", delay_ms=60_000)
    settle(store, failed(other, delay_ms=60_000))
    before = {key: value[:2] for key, value in dump(store.client).items()}

    store.server.kill()
    for call in SOME_CALLS.values():
        with pytest.raises(BrokerUnavailable, match="is away"):
            call(store, claim)
    store.server.start()

    assert {key: value[:2] for key, value in dump(store.client).items()} == before
    assert [r.hold for r in store.broker.renew([("w1", claim.raw)])] == ["held"]
    assert settle(store, complete(claim)) is SettleResult.DONE
    assert store.broker.settle_and_claim([], ["w1"]).claims[0].id == "waiting"
    assert store.broker.census().drift == 0


def test_jobs_enqueued_while_the_server_is_killed_are_there_or_were_not_acknowledged(durable):
    store = durable
    acknowledged: list[str] = []
    is_over = threading.Event()

    def produce() -> None:
        for n in range(100_000):
            if is_over.is_set():
                return
            if says_enqueued(store, f"job{n}"):
                acknowledged.append(f"job{n}")

    producer = threading.Thread(target=produce)
    producer.start()
    for goal in (100, 200):
        wait_until(lambda goal=goal: len(acknowledged) > goal, 30)
        os.kill(store.server.pid, 9)
        store.server.restart()
    wait_until(lambda: len(acknowledged) > 300, 30)
    is_over.set()
    producer.join()

    found = ids_in(store, "low")
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found)), "and none twice"
    assert store.broker.census().drift == 0


def test_a_server_that_lost_everything_is_a_new_one(redis_server):
    """No persistence, killed: the slots are gone, and say so; nothing is refused for ever."""
    with Server(redis_server.binary) as server, Store(server) as store:
        claim = running(store, "a")
        server.restart(kill=True)
        store.client = server.client()
        turn = store.broker.settle_and_claim([complete(claim)], ["w1"])
        assert turn.settled == (SettleResult.FENCED,)
        assert turn.gone == ("w1",)
        whole_life(store.broker, store.client)
        assert reap_all(store) == []
        assert raws_in(store, "low") == []
