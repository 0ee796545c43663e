"""What one SqliteBroker keeps outside the file: its clocks, its place in the claim order, who waits and who listens."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator

from fileq.brokers.order import ClaimOrder
from fileq.brokers.sqlite.books import Books
from fileq.brokers.sqlite.store import Store
from fileq.brokers.sqlite.wake import SqliteSubscription, Watcher
from fileq.config import Config


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SqliteState:
    """`clock` is the wall's, for due times and history; `monotonic` is for leases and the rate limit, which a
    step of the wall clock must not touch. Both in milliseconds."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], int] = wall_ms,
        monotonic: Callable[[], int] = monotonic_ms,
        create: bool = True,
    ) -> None:
        self.config = config
        self.clock = clock
        self.monotonic = monotonic
        self.queue_names = tuple(config.worker.priorities)
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)
        self.store = Store(config.sqlite.path, create=create)
        self.where = self.store.path
        self.watcher = Watcher(self.store, self.queue_names)
        self.subscriptions: set[SqliteSubscription] = set()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Books]:
        """The books of one transaction: written and committed at the end, or, if it raises, as if never opened."""
        with self.store.lock:
            claims = self.order.claims
            try:
                with self.store.transaction() as db:
                    # The clocks are read behind the locks: who comes later is never earlier.
                    books = Books(
                        db,
                        self.config,
                        boot=self.store.boot,
                        now_ms=self.clock(),
                        monotonic_ms=self.monotonic(),
                        is_heard=self.store.presence.is_anybody_there(),
                    )
                    yield books
                    books.write()
            except BaseException:
                self.order.claims = claims
                raise
        if books.has_pushed:
            self.watcher.wake_all()

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """One consistent look, and the time of it."""
        with self.store.snapshot() as db:
            yield db, self.clock()

    def close(self) -> None:
        self.watcher.close()
        for subscription in list(self.subscriptions):
            subscription.close()
        self.store.close()
