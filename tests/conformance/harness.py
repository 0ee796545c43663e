"""The harnesses of our own brokers for the conformance tests: SQLite, and Redis or Valkey on a real server."""

import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from redis import Redis

from fileq.brokers.protocol import FullBroker
from fileq.brokers.redis import open_redis
from fileq.brokers.redis.layout import Keys
from fileq.brokers.sqlite import SqliteBroker
from fileq.config import Config
from fileq.testing.conformance import FakeClock, Harness, MemoryHarness, config_of
from tests.support.servers import Server
from tests.support.sqlite_store import change_one_row, push_raw

KINDS = ("memory", "sqlite", "valkey", "redis")
SERVER_KINDS = ("valkey", "redis")


class ProtocolOnly:
    """A broker with the methods of the protocol and no others."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self.kind, self.where = broker.kind, broker.where

    def __getattr__(self, name: str) -> Any:
        if name not in dir(FullBroker):
            raise AttributeError(name)
        return getattr(self._broker, name)


class ProtocolHarness(MemoryHarness):
    """The memory broker as the broker of another author: no conformance test can use more than the protocol."""

    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.broker = cast(FullBroker, ProtocolOnly(self.memory))


class SqliteHarness(Harness):
    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.broker = self.open()

    def open(self) -> FullBroker:
        return SqliteBroker(self.config, clock=self.clock, monotonic=self.clock)

    def push_raw(self, queue: str, raw: bytes) -> None:
        push_raw(self.broker, queue, raw)

    def schedule_raw(self, raw: bytes, due_ms: int) -> None:
        change_one_row(self.broker, "INSERT INTO scheduled (due_ms, raw) VALUES (?, ?)", due_ms, raw)

    def remove_registration(self, slot: str) -> None:
        change_one_row(self.broker, "UPDATE slots SET info = NULL WHERE slot = ?", slot)

    def remove_record(self, id: str) -> None:
        change_one_row(self.broker, "DELETE FROM records WHERE id = ?", id)

    def remove_raw(self, place: str, raw: bytes, slot: str = "") -> None:
        if place == "processing":
            change_one_row(self.broker, "UPDATE slots SET held = NULL WHERE held = ? AND slot = ?", raw, slot)
        elif place in ("scheduled", "dead_letter"):
            change_one_row(self.broker, f"DELETE FROM {place.removesuffix('_letter')} WHERE raw = ?", raw)
        else:
            change_one_row(self.broker, "DELETE FROM queued WHERE queue = ? AND raw = ?", place, raw)

    def change_counter(self, name: str, by: int) -> None:
        change_one_row(self.broker, "UPDATE stats SET value = value + ? WHERE name = ?", by, name)


class ServerHarness(Harness):
    """Redis or Valkey. The server's clock runs on, so the harness keeps all expiries in the time of the fake clock.

    It prolongs them on the server: a key expires when `advance` says so, and not before."""

    is_exact = False
    _serial = itertools.count()

    def __init__(self, config: Config, server: Server, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.client = plain_client(server)
        self.expiries: dict[bytes, tuple[int, int]] = {}  # key → (time on the server, time on the fake clock)
        self.broker = self.open()

    @classmethod
    def unique_prefix(cls) -> str:
        return f"t{next(cls._serial)}"

    def open(self) -> FullBroker:
        return open_redis(self.config, clock=self.clock)

    def push_raw(self, queue: str, raw: bytes) -> None:
        self.client.lpush(self.config.worker.queues[queue], raw)

    def schedule_raw(self, raw: bytes, due_ms: int) -> None:
        self.client.zadd(Keys(self.config).scheduled, {raw: due_ms})

    def remove_registration(self, slot: str) -> None:
        assert self.client.hdel(f"{self.config.redis.prefix}:workers", slot) == 1

    def remove_record(self, id: str) -> None:
        assert self.client.delete(f"{self.config.redis.prefix}:job:{id}") == 1

    def remove_raw(self, place: str, raw: bytes, slot: str = "") -> None:
        keys = Keys(self.config)
        if place == "scheduled":
            assert self.client.zrem(keys.scheduled, raw) == 1
        else:
            key = keys.processing(slot) if place == "processing" else keys.list_of(place)
            assert key is not None
            assert self.client.lrem(key, 1, raw) == 1

    def change_counter(self, name: str, by: int) -> None:
        self.client.hincrby(f"{self.config.redis.prefix}:stats", name, by)

    def advance(self, seconds: float) -> None:
        before = self.clock.ms
        super().advance(seconds)
        keys = list(self.client.scan_iter(match=f"{self.config.redis.prefix}:*", count=10_000))
        with self.client.pipeline(transaction=False) as reading:
            for key in keys:
                reading.pexpiretime(key).pttl(key)
            replies = reading.execute()
        with self.client.pipeline(transaction=True) as writing:
            for key, at_ms, left_ms in zip(keys, replies[::2], replies[1::2], strict=True):
                if at_ms > 0:
                    self._set_expiry(writing, key, at_ms, left_ms, before)
            writing.execute()

    def _set_expiry(self, pipeline: Any, key: bytes, at_ms: int, left_ms: int, before_ms: int) -> None:
        was_at_ms, ends_ms = self.expiries.get(key, (0, 0))
        windows = self.config.producer.rate_limit_key, f"{self.config.redis.prefix}:route_rate:"
        is_window = key.decode().startswith(windows)
        if was_at_ms != at_ms:
            # Set since the last advance. All expiries are whole steps; the missing part has passed in real time.
            step_ms = 1_000 if is_window else 10_000
            ends_ms = before_ms - (-left_ms // step_ms) * step_ms
        if ends_ms <= self.clock.ms:
            pipeline.delete(key)
            return
        # The broker returns the remaining time of a window, so it may be prolonged only a little.
        floor_ms = 500 if is_window else 60_000
        until_ms = at_ms - left_ms + max(ends_ms - self.clock.ms, floor_ms)
        pipeline.pexpireat(key, until_ms)
        self.expiries[key] = (until_ms, ends_ms)

    def close(self) -> None:
        super().close()
        self.client.flushdb()


@cache
def plain_client(server: Server) -> Redis:
    """The client of the harness; closed with the server."""
    return server.client()


def open_harness(
    kind: str, settings: Mapping[str, Any], clock: FakeClock | None = None, *, directory: Path, server: Server | None
) -> Harness:
    """Opens a new, empty broker of this kind; `server` is needed for a kind of server."""
    if kind == "memory":
        return ProtocolHarness(config_of("memory", settings), clock)
    if kind == "sqlite":
        path = str(directory / f"fileq-{len(list(directory.iterdir()))}.db")
        return SqliteHarness(config_of("sqlite", {"sqlite.path": path, **settings}), clock)
    assert server is not None
    own = {"redis.addr": server.address, "redis.prefix": ServerHarness.unique_prefix(), "redis.min_idle_conns": 0}
    return ServerHarness(config_of("redis", {**own, **settings}), server, clock)
