"""One Redis broker on a real server, seen from two sides: through fileq, and through a plain client.

The builders of the conformance suite accept a Store as their harness. With a FakeClock time stands still, so that two
runs of the same calls leave the same bytes; only the expiries of keys follow the server's clock.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import redis

from fileq.brokers.redis import RedisBroker, open_redis
from fileq.brokers.redis.layout import Keys
from fileq.brokers.redis.scripts import VARIANTS, script
from fileq.config import Config, config_from
from fileq.core.job import Claim
from fileq.testing.conformance.builders import enqueue, register
from fileq.testing.conformance.harness import START_MS, FakeClock, nested
from tests.support.servers import Server

QUICK = {"redis.read_timeout": "150ms", "redis.write_timeout": "150ms"}
NO_RETRIES = {"redis.max_retries": 0}
GARBAGE = b"\x00not a job\xff"


class Store:
    """`broker` is fileq's client; `client` is a plain one that goes straight to the server."""

    def __init__(self, server: Server, *, clock: FakeClock | None = None, **settings: Any) -> None:
        self.server = server
        self.clock = clock
        self.settings = {"redis.addr": server.address, "redis.min_idle_conns": 0, **settings}
        self.config = config_on(**self.settings)
        self.keys = Keys(self.config)
        self.client = server.client()
        self._opened: list[RedisBroker] = []
        load_scripts(self.client)
        self.broker = self.another()

    def another(self, **settings: Any) -> RedisBroker:
        """Another broker on the same server, with these settings changed."""
        broker = open_redis(config_on(**{**self.settings, **settings}), clock=self.clock)
        self._opened.append(broker)
        return broker

    def through(self, port: int, **settings: Any) -> RedisBroker:
        """Another broker that connects to this port."""
        return self.another(**{"redis.addr": f"127.0.0.1:{port}", **settings})

    def close(self) -> None:
        for broker in self._opened:
            broker.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def advance(self, seconds: float) -> None:
        assert self.clock is not None
        self.clock.ms += round(seconds * 1000)

    def empty(self) -> None:
        """Remove all keys and reset the clock; the scripts stay loaded."""
        self.client.flushall()
        if self.clock is not None:
            self.clock.ms = START_MS


def load_scripts(client: redis.Redis) -> None:
    """Gives the server every script, so that the first call is one round trip like all others."""
    piped(client, [("SCRIPT", "LOAD", text) for text in _script_texts()])


@functools.cache
def _script_texts() -> tuple[str, ...]:
    files = [file for file in (resources.files("fileq.brokers.redis") / "lua").iterdir() if file.is_file()]
    names = [file.name.removesuffix(".lua") for file in files if file.read_bytes().startswith(b"#!")]
    return tuple(script(name).text for name in (*names, *VARIANTS))


def config_on(**settings: Any) -> Config:
    return config_from(nested({"broker": "redis", **settings}))


@contextlib.contextmanager
def opened(server: Server, **settings: Any) -> Iterator[Store]:
    with Store(server, clock=FakeClock(), **settings) as store:
        yield store


def claimed(store: Store, *slots: str, ids: tuple[str, ...] = ()) -> list[Claim]:
    """Register these slots and claim a job for each; the ids are a, b, … unless given."""
    ids = ids or tuple("abcdefgh"[: len(slots)])
    enqueue(store, *ids)
    register(store, *slots)
    claims = store.broker.settle_and_claim([], slots).claims
    assert len(claims) == len(slots)
    return list(claims)


# the server's contents


def dump(client: redis.Redis) -> dict[bytes, tuple[bytes, Any, int]]:
    """Type, exact contents and expiry of every key. If two dumps are equal, nothing was written between them."""
    keys = sorted(client.keys())
    answers = piped(client, [(command, key) for command in ("TYPE", "PEXPIRETIME") for key in keys])
    kinds, ends = answers[: len(keys)], answers[len(keys) :]
    held = piped(client, [_READ[kind](key) for kind, key in zip(kinds, keys, strict=True)])
    return dict(zip(keys, zip(kinds, map(_in_order, kinds, held), ends, strict=True), strict=True))


def contents(client: redis.Redis) -> dict[bytes, tuple[bytes, Any, bool]]:
    """As dump(), but only whether a key expires: equal after equal calls."""
    return {key: (kind, value, at_ms > 0) for key, (kind, value, at_ms) in dump(client).items()}


_READ: dict[bytes, Callable[[bytes], tuple[Any, ...]]] = {
    b"string": lambda key: ("GET", key),
    b"list": lambda key: ("LRANGE", key, 0, -1),
    b"hash": lambda key: ("HGETALL", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"set": lambda key: ("SMEMBERS", key),
    b"stream": lambda key: ("XRANGE", key, "-", "+"),
}


def _in_order(kind: bytes, value: Any) -> Any:
    return sorted(value) if kind == b"set" else value


def piped(client: redis.Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    """The replies to these commands, in one round trip."""
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute()


def spoil(client: redis.Redis, key: bytes) -> None:
    """Replace the key by a stream, a type that fileq never uses."""
    client.delete(key)
    client.xadd(key, {"spoilt": "yes"})
