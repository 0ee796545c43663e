"""One broker under test, with its clock in the test's hands and a back door for other programs.

A test knows a harness and nothing of the broker behind it. Time stands still until `advance`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.protocol import FullBroker
from fileq.config import Config, config_from
from tests.support.servers import Server
from tests.support.sqlite_store import change_one_row, push_raw

KINDS = ("memory", "sqlite", "valkey", "redis")
SERVER_KINDS = ("valkey", "redis")

# In the middle of an hour, so that the hourly counters don't turn over under a test.
START_MS = 1_800_000_000_000 + 20 * 60 * 1000


class FakeClock:
    """Milliseconds since the epoch that pass only when told to."""

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


class Harness(ABC):
    """What a test may do. `config` is the broker's own; `broker` is the client of this process."""

    broker: FullBroker
    # Whether leases and windows run on the fake clock to the millisecond. On a server they are expiries of
    # keys, so that what is left of them is known to the second only.
    is_exact = True

    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        self.config = config
        self.clock = clock or FakeClock()
        self._others: list[FullBroker] = []

    def advance(self, seconds: float) -> None:
        """Time passes, for every clock that this broker looks at."""
        self.clock.ms += round(seconds * 1000)

    @abstractmethod
    def open(self) -> FullBroker:
        """A client of the same store with nothing in common but the store."""

    def another(self) -> FullBroker:
        """The same store as another process has it; closed with the harness."""
        other = self.open()
        self._others.append(other)
        return other

    @abstractmethod
    def push_raw(self, queue: str, raw: bytes) -> None:
        """What any other program can do: put bytes into a queue."""

    @abstractmethod
    def lose_registration(self, slot: str) -> None:
        """The registry forgets a slot, and nothing else does: a failover that rewound one write."""

    @abstractmethod
    def lose_record(self, id: str) -> None:
        """A record is gone, and nothing else."""

    @abstractmethod
    def lose_element(self, place: str, raw: bytes, slot: str = "") -> None:
        """An element is gone from a queue, `scheduled`, `dead_letter` or, for this slot, `processing`; nothing else."""

    @abstractmethod
    def bend_counter(self, name: str, by: int) -> None:
        """A counter is wrong from now on."""

    def close(self) -> None:
        for other in self._others:
            other.close()
        self.broker.close()


class MemoryHarness(Harness):
    broker: MemoryBroker

    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.broker = MemoryBroker(config, clock=self.clock)

    def open(self) -> FullBroker:
        return self.broker

    def push_raw(self, queue: str, raw: bytes) -> None:
        with self.broker.store.lock:
            self.broker.store.push_raw(queue, raw, front=False)

    def lose_registration(self, slot: str) -> None:
        del self.broker.store.registry[slot]

    def lose_record(self, id: str) -> None:
        del self.broker.store.records[id]

    def lose_element(self, place: str, raw: bytes, slot: str = "") -> None:
        store = self.broker.store
        if place == "scheduled":
            del store.scheduled[raw]
        else:
            {**store.queues, "dead_letter": store.dead, "processing": store.processing[slot]}[place].remove(raw)

    def bend_counter(self, name: str, by: int) -> None:
        self.broker.store.counters[name] += by


class SqliteHarness(Harness):
    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.broker = self.open()

    def open(self) -> FullBroker:
        from fileq.brokers.sqlite import SqliteBroker

        return SqliteBroker(self.config, clock=self.clock, monotonic=self.clock)

    def push_raw(self, queue: str, raw: bytes) -> None:
        push_raw(self.broker, queue, raw)

    def lose_registration(self, slot: str) -> None:
        change_one_row(self.broker, "UPDATE slots SET info = NULL WHERE slot = ?", slot)

    def lose_record(self, id: str) -> None:
        change_one_row(self.broker, "DELETE FROM records WHERE id = ?", id)

    def lose_element(self, place: str, raw: bytes, slot: str = "") -> None:
        if place == "processing":
            change_one_row(self.broker, "UPDATE slots SET held = NULL WHERE held = ? AND slot = ?", raw, slot)
        elif place in ("scheduled", "dead_letter"):
            change_one_row(self.broker, f"DELETE FROM {place.removesuffix('_letter')} WHERE raw = ?", raw)
        else:
            change_one_row(self.broker, "DELETE FROM queued WHERE queue = ? AND raw = ?", place, raw)

    def bend_counter(self, name: str, by: int) -> None:
        change_one_row(self.broker, "UPDATE stats SET value = value + ? WHERE name = ?", by, name)


class ServerHarness(Harness):
    """Redis or Valkey. The server's own time goes on: expiries are kept in the test's time here, and what is left
    of them on the server is stretched, so that a key goes when `advance` says so and not before."""

    is_exact = False
    _serial = itertools.count()

    def __init__(self, config: Config, server: Server, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.client = plain_client(server)
        self.expiries: dict[bytes, tuple[int, int]] = {}  # key → (as set on the server, in the test's time)
        self.broker = self.open()

    @classmethod
    def unique_prefix(cls) -> str:
        return f"t{next(cls._serial)}"

    def open(self) -> FullBroker:
        from fileq.brokers.redis import open_redis

        return open_redis(self.config, clock=self.clock)

    def push_raw(self, queue: str, raw: bytes) -> None:
        self.client.lpush(self.config.worker.queues[queue], raw)

    def lose_registration(self, slot: str) -> None:
        assert self.client.hdel(f"{self.config.redis.prefix}:workers", slot) == 1

    def lose_record(self, id: str) -> None:
        assert self.client.delete(f"{self.config.redis.prefix}:job:{id}") == 1

    def lose_element(self, place: str, raw: bytes, slot: str = "") -> None:
        from fileq.brokers.redis.keys import Keys

        keys = Keys(self.config)
        if place == "scheduled":
            assert self.client.zrem(keys.scheduled, raw) == 1
        else:
            key = keys.processing(slot) if place == "processing" else keys.list_of(place)
            assert key is not None
            assert self.client.lrem(key, 1, raw) == 1

    def bend_counter(self, name: str, by: int) -> None:
        self.client.hincrby(f"{self.config.redis.prefix}:stats", name, by)

    def advance(self, seconds: float) -> None:
        before = self.clock.ms
        super().advance(seconds)
        keys = list(self.client.scan_iter(match=f"{self.config.redis.prefix}:*", count=10_000))
        with self.client.pipeline(transaction=False) as look:
            for key in keys:
                look.pexpiretime(key).pttl(key)
            answers = look.execute()
        with self.client.pipeline(transaction=True) as shift:
            for key, at_ms, left_ms in zip(keys, answers[::2], answers[1::2], strict=True):
                if at_ms > 0:
                    self._shift(shift, key, at_ms, left_ms, before)
            shift.execute()

    def _shift(self, pipeline: Any, key: bytes, at_ms: int, left_ms: int, before_ms: int) -> None:
        was_at_ms, ends_ms = self.expiries.get(key, (0, 0))
        is_window = key == self.config.producer.rate_limit_key.encode()
        if was_at_ms != at_ms:
            # Set since the last advance. All expiries are of whole steps; what is missing went by in real time.
            step_ms = 1_000 if is_window else 10_000
            ends_ms = before_ms - (-left_ms // step_ms) * step_ms
        if ends_ms <= self.clock.ms:
            pipeline.delete(key)
            return
        # How long a window has left is an answer, so it may be stretched only a little.
        floor_ms = 500 if is_window else 60_000
        until_ms = at_ms - left_ms + max(ends_ms - self.clock.ms, floor_ms)
        pipeline.pexpireat(key, until_ms)
        self.expiries[key] = (until_ms, ends_ms)

    def close(self) -> None:
        super().close()
        self.client.flushdb()


@cache
def plain_client(server: Server) -> Redis:
    """What another program and the harness itself use; closed with the server."""
    return server.client()


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """{"worker.count": 2} as a configuration file has it."""
    tree: dict[str, Any] = {}
    for path, value in dotted.items():
        *sections, name = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return tree


def open_harness(
    kind: str, overrides: Mapping[str, Any], *, directory: Path, server: Server | None, clock: FakeClock | None = None
) -> Harness:
    """A new, empty broker of this kind. `server` is needed where the kind is a server's."""
    if kind == "memory":
        return MemoryHarness(config_from(nested({"broker": "memory", **overrides})), clock)
    if kind == "sqlite":
        path = str(directory / f"fileq-{len(list(directory.iterdir()))}.db")
        return SqliteHarness(config_from(nested({"broker": "sqlite", "sqlite.path": path, **overrides})), clock)
    assert server is not None
    settings = {
        "broker": "redis",
        "redis.addr": server.address,
        "redis.prefix": ServerHarness.unique_prefix(),
        "redis.min_idle_conns": 0,
    }
    return ServerHarness(config_from(nested({**settings, **overrides})), server, clock)
