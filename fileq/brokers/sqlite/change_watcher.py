"""Wakes the waiters of one process when a queue of the database gets a job.

A push by this process wakes them at once. Pushes by other processes are found by a thread that polls SQLite's
`data_version`, one cheap read, every 10 ms while a waiter is armed; otherwise the thread sleeps. Changes nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading

from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.sqlite.database import Database

POLL_INTERVAL_S = 0.01


def has_work(db: sqlite3.Connection, queues: tuple[str, ...], paused: frozenset[str]) -> bool:
    sql = "SELECT 1 FROM queued WHERE queue = ? LIMIT 1"
    return any(db.execute(sql, (queue,)).fetchone() for queue in queues if queue not in paused)


class ChangeWatcher:
    def __init__(self, database: Database, queues: tuple[str, ...]) -> None:
        self._database = database
        self._queues = queues
        self._waiters: set[LocalWaiter] = set()
        self._armed: dict[LocalWaiter, frozenset[str]] = {}  # waiter → queues it does not want
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def waiter(self, longest_s: float) -> LocalWaiter:
        # The waiter is watched before the queues are read: a push between the two is noticed by the watcher.
        def arm_and_check(paused: frozenset[str]) -> bool:
            self._arm(waiter, paused)
            with self._database.snapshot() as db:
                return has_work(db, self._queues, paused)

        waiter = LocalWaiter(arm_and_check, longest_s, self._remove)
        with self._changed:
            self._waiters.add(waiter)
        return waiter

    def wake_all(self) -> None:
        with self._changed:
            self._armed.clear()
            for waiter in self._waiters:
                waiter.wake()

    def _arm(self, waiter: LocalWaiter, paused: frozenset[str]) -> None:
        with self._changed:
            if self._is_closed or waiter not in self._waiters:
                return
            self._armed[waiter] = paused
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fileq-sqlite-watch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _remove(self, waiter: LocalWaiter) -> None:
        with self._changed:
            self._waiters.discard(waiter)
            self._armed.pop(waiter, None)

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
                        self._wake_waiters_with_work(db)
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

    def _wake_waiters_with_work(self, db: sqlite3.Connection) -> None:
        with self._changed:
            armed = list(self._armed.items())
        ready = [waiter for waiter, paused in armed if has_work(db, self._queues, paused)]
        with self._changed:
            for waiter in ready:
                if self._armed.pop(waiter, None) is not None:
                    waiter.wake()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            waiters, thread = list(self._waiters), self._thread
            self._changed.notify_all()
        for waiter in waiters:
            waiter.close()
        if thread is not None:
            thread.join()
