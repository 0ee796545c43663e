"""The list of completed or of cancelled jobs during one transaction: appended and trimmed here, written at its end.

Positions have no gaps, so the length follows from the first and the last.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from fileq.core.job import State

_PAGE = 16


def first_and_last(db: sqlite3.Connection, state: State) -> tuple[int, int]:
    """The positions at the ends of a list; (1, 0) if it is empty."""
    # Two statements, each one index lookup: min and max in one statement would read the whole list.
    (first,) = db.execute("SELECT min(position) FROM ended WHERE state = ?", (state.value,)).fetchone()
    (last,) = db.execute("SELECT max(position) FROM ended WHERE state = ?", (state.value,)).fetchone()
    return (1, 0) if first is None else (first, last)


class EndedList:
    def __init__(self, db: sqlite3.Connection, state: State) -> None:
        self._db = db
        self._state = state
        self._first, last = first_and_last(db, state)
        self._next = self._new_from = last + 1
        self._new: list[bytes] = []
        self._oldest = self._read(self._first)

    def append(self, raw: bytes) -> None:
        self._new.append(raw)
        self._next += 1

    def trim(self, limit: int) -> Iterator[bytes]:
        """Yields the entries removed to keep at most `limit`, oldest first."""
        while self._next - self._first > limit:
            position = self._first
            self._first += 1
            yield next(self._oldest) if position < self._new_from else self._new[position - self._new_from]

    def _read(self, position: int) -> Iterator[bytes]:
        sql = "SELECT raw FROM ended WHERE state = ? AND position >= ? ORDER BY position LIMIT ?"
        while page := self._db.execute(sql, (self._state.value, position, _PAGE)).fetchall():
            position += len(page)
            for (raw,) in page:
                yield raw

    def write(self) -> None:
        name, new = self._state.value, enumerate(self._new, self._new_from)
        kept = [(name, position, raw) for position, raw in new if position >= self._first]
        self._db.executemany("INSERT INTO ended VALUES (?, ?, ?)", kept)
        self._db.execute("DELETE FROM ended WHERE state = ? AND position < ?", (name, self._first))
