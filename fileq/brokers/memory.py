"""The memory broker: the tables of the SQLite broker in a database without a file. Everything is lost with the process.

`store` is also the back door of tests: what another program or a failover can do to a broker's contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from fileq.brokers.local_waiter import LocalWaiter, take_lease
from fileq.brokers.rules.unit_of_work import Store, UnitOfWork
from fileq.brokers.sqlite.broker import RulebookBroker
from fileq.brokers.sqlite.change_watcher import has_work
from fileq.brokers.sqlite.database import MemoryDatabase
from fileq.config import Config
from fileq.core.finding import Finding
from fileq.core.job import wall_clock_ms


class MemoryStore(Store):
    def __init__(self, config: Config, *, clock: Callable[[], int]) -> None:
        super().__init__(config, MemoryDatabase(), clock=clock, monotonic=lambda: self.clock())
        self.leases: dict[str, tuple[str, int]] = {}  # name → holder, when it ends
        self.waiters: set[LocalWaiter] = set()
        self.subscriptions: set[MemorySubscription] = set()

    @contextlib.contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        with self.database.lock:
            with super().unit_of_work() as work:
                yield work
                events, work.events = work.events, []  # no other process reads them from the database
            for event in events:
                for subscription in tuple(self.subscriptions):
                    subscription.put(event)

    def has_subscribers(self) -> bool:
        return bool(self.subscriptions)

    def has_work(self) -> bool:
        """Whether a queue that is not paused holds a job."""
        with self.database.snapshot() as db:
            return has_work(db, self.queue_names)

    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> str:
        with self.database.lock:
            return take_lease(self.leases, name, holder, ttl_ms, instead_of, self.clock())

    def wake(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def waiter(self) -> LocalWaiter:
        waiter = LocalWaiter(self.has_work, self.config.worker.brpoplpush_timeout, self.waiters.discard)
        self.waiters.add(waiter)
        return waiter

    def subscribe(self) -> MemorySubscription:
        subscription = MemorySubscription(self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription


class MemorySubscription:
    """Implements protocol.Subscription within one process. Unbounded: events are kept until they are read."""

    def __init__(self, on_close: Callable[[MemorySubscription], None]) -> None:
        self._on_close = on_close
        self._events: SimpleQueue[bytes] = SimpleQueue()

    def put(self, event: bytes) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        self._on_close(self)


class MemoryBroker(RulebookBroker):
    store: MemoryStore
    kind = "memory"
    where = "this process"

    def __init__(self, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self.store = MemoryStore(config, clock=clock)

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Finds nothing: this broker depends on nothing outside its process."""
        return []

    def close(self) -> None:
        """Does nothing: no resource outlives the process."""
