"""The producers' shared rate limit: one window for all of them, in the file, on the clock that no step can move."""

from __future__ import annotations

from fileq.brokers.sqlite.books import Books

WINDOW_MS = 1000


class Window:
    """The permits of one enqueue. A window begins with its first permit and ends by itself, whoever died meanwhile."""

    def __init__(self, books: Books, limit: int) -> None:
        self._books = books
        self._limit = limit  # 0: no permit is needed
        self.permits = 0  # taken by this enqueue
        sql = "SELECT ends_ms, taken FROM rate WHERE boot = ?"
        found: tuple[int, int] | None = books.db.execute(sql, (books.boot,)).fetchone()
        self._ends_ms, self._taken = found or (0, 0)

    def take(self) -> bool:
        if not self._limit:
            return True
        if self._books.monotonic_ms >= self._ends_ms:
            self._ends_ms, self._taken = self._books.monotonic_ms + WINDOW_MS, 0
        if self._taken >= self._limit:
            return False
        self._taken += 1
        self.permits += 1
        return True

    @property
    def wait_ms(self) -> int:
        return max(1, self._ends_ms - self._books.monotonic_ms)

    def write(self) -> None:
        if self.permits:
            sql = "INSERT OR REPLACE INTO rate VALUES (1, ?, ?, ?)"
            self._books.db.execute(sql, (self._books.boot, self._ends_ms, self._taken))
