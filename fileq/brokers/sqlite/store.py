"""What one SqliteBroker works on: the database, and what the process keeps outside it.

Outside the database are the clocks, the order of the queues, the waiters and the subscriptions. All of that is lost
with the process, and a kill -9 leaves nothing of it that matters.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter
from fileq.brokers.sqlite.change_watcher import ChangeWatcher, SqliteSubscription
from fileq.brokers.sqlite.database import Database
from fileq.brokers.sqlite.unit_of_work import SqliteWork
from fileq.config import Config


class SqliteStore:
    """`clock` is the wall clock, for due times and history. `monotonic` is for leases and the rate limit, which a step
    of the wall clock must not change. Both count milliseconds."""

    def __init__(
        self, config: Config, *, clock: Callable[[], int], monotonic: Callable[[], int], create: bool = True
    ) -> None:
        self.config = config
        self.clock = clock
        self.monotonic = monotonic
        self.queue_names = tuple(config.worker.priorities)
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)
        self.database = Database(config.sqlite.path, create=create)
        self.watcher = ChangeWatcher(self.database, self.queue_names)
        self.subscriptions: set[SqliteSubscription] = set()

    @contextlib.contextmanager
    def unit_of_work(self) -> Iterator[SqliteWork]:
        """One transaction: written and committed at the end, or rolled back if the block raises."""
        database = self.database
        with database.lock:
            claims = self.order.claims
            try:
                with database.transaction() as db:
                    # The clocks are read behind the locks: a later transaction never has an earlier time.
                    work = self._work(db, has_subscribers=database.subscribers.exist())
                    work.forget_expired()
                    yield work
                    work.write()
            except BaseException:
                self.order.claims = claims
                raise
        if work.queued.has_pushed:
            self.wake()

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteWork]:
        """A consistent view of the database. Never waits for a writer."""
        with self.database.snapshot() as db:
            yield self._work(db)

    def _work(self, db: sqlite3.Connection, *, has_subscribers: bool = False) -> SqliteWork:
        return SqliteWork(
            db,
            self.config,
            boot=self.database.boot,
            now_ms=self.clock(),
            monotonic_ms=self.monotonic(),
            has_subscribers=has_subscribers,
        )

    def wake(self) -> None:
        self.watcher.wake_all()

    def waiter(self) -> LocalWaiter:
        return self.watcher.waiter(self.config.worker.brpoplpush_timeout)

    def subscribe(self) -> SqliteSubscription:
        subscription = SqliteSubscription(self.database, self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        self.watcher.close()
        for subscription in list(self.subscriptions):
            subscription.close()
        self.database.close()
