"""Waking and telling across processes that share a database file: cheap looks, and only while somebody waits."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable

from fileq.brokers.sqlite.store import Store
from fileq.brokers.wake import LocalWaiter

LOOK_EVERY_S = 0.01
_EVENTS_AT_ONCE = 500


def has_work(db: sqlite3.Connection, queues: tuple[str, ...], paused: frozenset[str]) -> bool:
    sql = "SELECT 1 FROM queued WHERE queue = ? LIMIT 1"
    return any(db.execute(sql, (queue,)).fetchone() for queue in queues if queue not in paused)


class Watcher:
    """Wakes the waiters of this process: at once for what was pushed here, and for what other processes
    pushed from a thread that looks at `data_version` while a waiter is armed and rests otherwise."""

    def __init__(self, store: Store, queues: tuple[str, ...]) -> None:
        self._store = store
        self._queues = queues
        self._waiters: set[LocalWaiter] = set()
        self._armed: dict[LocalWaiter, frozenset[str]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def waiter(self, longest_s: float) -> LocalWaiter:
        # The waiter asks after it has drained its descriptor: watched first and asked second, it misses nothing.
        def watch_and_ask(paused: frozenset[str]) -> bool:
            self._arm(waiter, paused)
            with self._store.snapshot() as db:
                return has_work(db, self._queues, paused)

        waiter = LocalWaiter(watch_and_ask, longest_s, self._forget)
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

    def _forget(self, waiter: LocalWaiter) -> None:
        # Under the lock, so that nobody writes to a descriptor that is about to be closed.
        with self._changed:
            self._waiters.discard(waiter)
            self._armed.pop(waiter, None)

    def _run(self) -> None:
        seen = -1
        with contextlib.ExitStack() as stack:
            db: sqlite3.Connection | None = None
            while self._is_anybody_waiting():
                try:
                    if db is None:
                        db = stack.enter_context(contextlib.closing(self._store.connect_reader()))
                    version = db.execute("PRAGMA data_version").fetchone()[0]
                    if version != seen:
                        seen = version
                        self._wake_those_with_work(db)
                except sqlite3.Error:
                    self.wake_all()  # let them turn and meet the trouble themselves
                with self._changed:
                    if not self._is_closed:
                        self._changed.wait(LOOK_EVERY_S)

    def _is_anybody_waiting(self) -> bool:
        with self._changed:
            while not self._armed and not self._is_closed:
                self._changed.wait()
            return not self._is_closed

    def _wake_those_with_work(self, db: sqlite3.Connection) -> None:
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


class SqliteSubscription:
    """Events of every process on the file, from the moment of subscribing. One that falls more than
    books.EVENTS_KEPT behind misses the oldest."""

    def __init__(self, store: Store, forget: Callable[[SqliteSubscription], None]) -> None:
        self._store = store
        self._forget = forget
        self._buffer: deque[bytes] = deque()
        # No other transaction is under way here: those after this one know of us and write their events.
        with store.transaction() as db:
            self._last = db.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()[0]
            self._fd = store.presence.enter()

    def get(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        while not self._buffer:
            self._fetch()
            left_s = deadline - time.monotonic()
            if self._buffer or left_s <= 0:
                break
            time.sleep(min(left_s, LOOK_EVERY_S))
        return self._buffer.popleft() if self._buffer else None

    def _fetch(self) -> None:
        sql = "SELECT number, body FROM events WHERE number > ? ORDER BY number LIMIT ?"
        with self._store.snapshot() as db:
            for number, body in db.execute(sql, (self._last, _EVENTS_AT_ONCE)):
                self._last = number
                self._buffer.append(body)

    def close(self) -> None:
        if self._fd >= 0:
            self._store.presence.leave(self._fd)
            self._fd = -1
            self._forget(self)
