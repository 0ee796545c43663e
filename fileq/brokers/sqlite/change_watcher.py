"""Wakes the waiters of one process when a queue of the database gets a job.

A push by this process wakes them at once. Pushes by other processes are found by a thread that polls SQLite's
`data_version`, one cheap read, every 10 ms while a waiter is armed; otherwise the thread sleeps. Changes nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable

from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.sqlite.database import Database

POLL_INTERVAL_S = 0.01


def has_work(db: sqlite3.Connection, queues: tuple[str, ...]) -> bool:
    """Whether a queue that is not paused holds a job."""
    sql = "SELECT 1 FROM queued WHERE queue = ? AND queue NOT IN (SELECT queue FROM paused) LIMIT 1"
    return any(db.execute(sql, (queue,)).fetchone() for queue in queues)


class ChangeWatcher:
    def __init__(self, database: Database, queues: tuple[str, ...]) -> None:
        self._database = database
        self._queues = queues
        self._waiters: set[LocalWaiter] = set()
        self._armed: set[LocalWaiter] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def waiter(self, longest_s: float) -> LocalWaiter:
        # The waiter is watched before the queues are read: a push between the two is noticed by the watcher.
        def arm_and_check() -> bool:
            self._arm(waiter)
            with self._database.snapshot() as db:
                return has_work(db, self._queues)

        waiter = LocalWaiter(arm_and_check, longest_s, self._remove)
        with self._changed:
            self._waiters.add(waiter)
        return waiter

    def wake_all(self) -> None:
        with self._changed:
            self._armed.clear()
            for waiter in self._waiters:
                waiter.wake()

    def _arm(self, waiter: LocalWaiter) -> None:
        with self._changed:
            if self._is_closed or waiter not in self._waiters:
                return
            self._armed.add(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fileq-sqlite-watch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _remove(self, waiter: LocalWaiter) -> None:
        with self._changed:
            self._waiters.discard(waiter)
            self._armed.discard(waiter)

    def _run(self) -> None:
        seen = -1
        with contextlib.ExitStack() as stack:
            db: sqlite3.Connection | None = None
            while self._wait_until_armed():
                try:
                    if db is None:
                        db = stack.enter_context(contextlib.closing(self._database.connect_reader()))
                    version = db.execute("PRAGMA data_version").fetchone()[0]
                    if version != seen:
                        seen = version
                        if has_work(db, self._queues):
                            self.wake_all()
                except sqlite3.Error:
                    self.wake_all()  # the pump's next call raises the error where it is handled
                with self._changed:
                    if not self._is_closed:
                        self._changed.wait(POLL_INTERVAL_S)

    def _wait_until_armed(self) -> bool:
        """Waits for an armed waiter (True) or for close() (False)."""
        with self._changed:
            while not self._armed and not self._is_closed:
                self._changed.wait()
            return not self._is_closed

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            waiters, thread = list(self._waiters), self._thread
            self._changed.notify_all()
        for waiter in waiters:
            waiter.close()
        if thread is not None:
            thread.join()


# A subscription to the events of every process that shares the database.
#
# Events are written to the table `events` only while a subscriber exists. A kill -9 of the subscriber ends its lock,
# and with it the writing. Only the newest events are kept (EVENTS_KEPT); a slower subscriber misses the
# oldest.


_EVENTS_PER_READ = 500


class SqliteSubscription:
    """Implements protocol.Subscription."""

    def __init__(self, database: Database, on_close: Callable[[SqliteSubscription], None]) -> None:
        self._database = database
        self._on_close = on_close
        self._buffer: deque[bytes] = deque()
        # Within a transaction, so that no other one is open: all later ones see the subscriber and write their events.
        with database.transaction() as db:
            self._last = db.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()[0]
            self._fd = database.subscribers.add()

    def get(self, timeout_s: float) -> bytes | None:
        deadline_s = time.monotonic() + timeout_s
        while not self._buffer:
            self._read()
            left_s = deadline_s - time.monotonic()
            if self._buffer or left_s <= 0:
                break
            time.sleep(min(left_s, POLL_INTERVAL_S))
        return self._buffer.popleft() if self._buffer else None

    def _read(self) -> None:
        sql = "SELECT number, body FROM events WHERE number > ? ORDER BY number LIMIT ?"
        with self._database.snapshot() as db:
            for number, body in db.execute(sql, (self._last, _EVENTS_PER_READ)):
                self._last = number
                self._buffer.append(body)

    def close(self) -> None:
        if self._fd >= 0:
            self._database.subscribers.remove(self._fd)
            self._fd = -1
            self._on_close(self)
