"""Ways in which a Redis server cannot serve, and calls to try on it. Each way starts with a healthy server and leaves a
healthy one."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import redis

from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import an_entry, enqueue, failed, recovered, register
from tests.support.redis_store import Store
from tests.support.servers import free_port
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
    """A script of another client runs without end."""
    store.client.config_set("busy-reply-threshold", 10)
    looper = store.server.client(socket_timeout=60)

    def loop() -> None:
        with contextlib.suppress(redis.ResponseError):  # killed, as it should be
            looper.eval("while true do end", 0)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    wait_until(lambda: refuses(store.client.ping, "BUSY"), what="the server is busy")
    yield
    store.client.execute_command("SCRIPT", "KILL")
    thread.join(10)


@contextlib.contextmanager
def loading(store: Store) -> Iterator[None]:
    """The server reads its data from disk, slowly."""
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
    wait_until(lambda: refuses(store.client.get, "loading", "x"), what="the server is loading")
    yield
    store.client.config_set("key-load-delay", 0)
    thread.join(10)
    store.client.delete(*(f"ballast:{n}" for n in range(1000)))


@contextlib.contextmanager
def unable_to_save(store: Store) -> Iterator[None]:
    """The last snapshot failed, and the server is configured to refuse writes then."""
    obstacle = store.server.directory / "dump.rdb"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    store.client.config_set("save", "3600 1")
    store.client.bgsave()
    wait_until(lambda: store.client.info("persistence")["rdb_last_bgsave_status"] == "err", what="a failed snapshot")
    yield
    obstacle.rmdir()
    store.client.config_set("save", "")


@contextlib.contextmanager
def without_replicas(store: Store) -> Iterator[None]:
    store.client.config_set("min-replicas-to-write", 1)
    yield
    store.client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """The server wants a password that the broker does not have; the connections were cut."""
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


def refuses(call: Callable[..., object], what: str, *args: object) -> bool:
    try:
        call(*args)
    except redis.RedisError as error:
        return what.lower() in str(error).lower()
    return False


def is_enqueued(store: Store, id: str) -> bool:
    with contextlib.suppress(BrokerUnavailable):
        enqueue(store, id)
        return True
    return False
