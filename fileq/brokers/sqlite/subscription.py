"""A subscription to the events of every process that shares the database.

Events are written to the table `events` only while a subscriber exists. A kill -9 of the subscriber ends its lock, and
with it the writing. Only the newest events are kept (unit_of_work.EVENTS_KEPT); a slower subscriber misses the oldest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from fileq.brokers.sqlite.change_watcher import POLL_INTERVAL_S
from fileq.brokers.sqlite.database import Database

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
