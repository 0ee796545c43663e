"""The producers' shared rate limit: one window for all of them, stored in the database.

It runs on the monotonic clock, which no step of the wall clock changes. A window begins with its first permit and ends
by time alone, so a producer killed in between does not block the others.
"""

from __future__ import annotations

from fileq.brokers.clocks import RATE_WINDOW_MS
from fileq.brokers.sqlite.unit_of_work import UnitOfWork


class RateWindow:
    """The permits of one `enqueue`."""

    def __init__(self, work: UnitOfWork, limit: int) -> None:
        self._work = work
        self._limit = limit  # 0: no permit is needed
        self.permits = 0  # taken by this call
        sql = "SELECT ends_ms, taken FROM rate WHERE boot = ?"
        found: tuple[int, int] | None = work.db.execute(sql, (work.boot,)).fetchone()
        self._ends_ms, self._taken = found or (0, 0)

    def take(self) -> bool:
        if not self._limit:
            return True
        if self._work.monotonic_ms >= self._ends_ms:
            self._ends_ms, self._taken = self._work.monotonic_ms + RATE_WINDOW_MS, 0
        if self._taken >= self._limit:
            return False
        self._taken += 1
        self.permits += 1
        return True

    @property
    def wait_ms(self) -> int:
        return max(1, self._ends_ms - self._work.monotonic_ms)

    def write(self) -> None:
        if self.permits:
            sql = "INSERT OR REPLACE INTO rate VALUES (1, ?, ?, ?)"
            self._work.db.execute(sql, (self._work.boot, self._ends_ms, self._taken))
