"""A producer on a directory and the memory broker. The test controls its clocks, its events and its outages."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import LedgerEntry
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Job, decode
from fileq.producer.finder.finder import WatchEvents
from fileq.producer.producer import Producer
from tests.support.clocks import ManualClocks, RecordedEvents

SETTLE, UNCLOSED, RESCAN = 0.5, 5.0, 60.0  # the defaults of settle, settle_unclosed and rescan_interval
HOUR = 3600.0


class FakeWatcher:
    """A DirectoryWatcher whose events the test makes."""

    made: ClassVar[list["FakeWatcher"]] = []
    most: ClassVar[int] = 1000  # watches that the kernel has

    def __init__(self, wake: object) -> None:
        self.events = WatchEvents()
        self.watched: set[bytes] = set()
        self.is_closed = False
        type(self).made.append(self)

    def watch(self, directory: bytes) -> None:
        if len(self.watched) >= self.most:
            raise OSError(errno.ENOSPC, "no more watches")
        self.watched.add(directory)

    def take_events(self) -> WatchEvents:
        events, self.events = self.events, WatchEvents()
        return events

    def close(self) -> None:
        self.is_closed = True


class UnreliableBroker:
    """The memory broker. `is_away` and `loses_reply` decide for each call whether it fails before or after."""

    def __init__(self, real: MemoryBroker) -> None:
        self.real = real
        self.is_away: Callable[[str], bool] = lambda verb: False
        self.loses_reply: Callable[[str], bool] = lambda verb: False
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.real, verb)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(verb)
            if self.is_away(verb):
                raise BrokerUnavailable("away")
            answer = method(*args, **options)
            if self.loses_reply(verb):
                raise BrokerUnavailable("no answer")
            return answer

        return call


class Scenario:
    """A directory, a broker and a producer."""

    producers: ClassVar[list[Producer]] = []  # closed after the test

    def __init__(self, root: Path, **producer: object) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.clock = ManualClocks(wall_ns=time.time_ns())
        self.events = RecordedEvents()
        self.config = config_from({"broker": "memory", "producer": {"scan_dir": str(root), **producer}})
        self.broker = UnreliableBroker(MemoryBroker(self.config))
        self.producer = self.start()

    def start(self, **options: Any) -> Producer:
        producer = Producer(
            self.config,
            self.broker,  # type: ignore[arg-type]
            emit=self.events,
            monotonic=self.clock.monotonic,
            wall_ns=self.clock.wall_ns,
            **options,
        )
        self.producers.append(producer)
        return producer

    @property
    def watcher(self) -> FakeWatcher:
        return FakeWatcher.made[-1]

    @property
    def skipped(self) -> dict[str, int]:
        """How many files were skipped so far, by reason."""
        return {reason.value: count for reason, count in self.producer.counts.skipped.items()}

    def add(self, *names: str, size: int = 1) -> None:
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
            os.utime(path, ns=(self.clock.wall, self.clock.wall))

    def path(self, name: str) -> bytes:
        return bytes(self.root / name)

    def entry(self, name: str) -> LedgerEntry | None:
        return self.broker.real.lookup([self.path(name)])[0]

    def is_marked_missing(self, name: str) -> bool:
        entry = self.entry(name)
        assert entry is not None, f"{name} is not in the ledger"
        return entry.missing_since_ms > 0

    def make_event(self, *, closed: str = "", created: str = "", directory: str = "") -> None:
        events = self.watcher.events
        for name, paths in ((closed, events.closed), (created, events.created), (directory, events.directories)):
            if name:
                paths.add(self.path(name))

    def turn(self, seconds: float = 0.0) -> float:
        """One turn, after some time."""
        self.clock.advance(seconds)
        return self.producer.turn()

    def run(self, seconds: float = 0.0) -> None:
        """Turns, after some time, until there is nothing to do right now."""
        self.clock.advance(seconds)
        for _ in range(10_000):
            if self.producer.turn() > 0:
                return
        raise AssertionError("the producer never comes to rest")

    def jobs(self) -> list[Job]:
        return [decode(raw) for queue in ("high", "low") for raw in self.broker.real.peek(queue, 10**6)]

    def names(self) -> list[str]:
        """The files that have jobs."""
        return sorted(os.path.relpath(job.filepath, self.root) for job in self.jobs())
