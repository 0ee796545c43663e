"""The table `queued` during one transaction: where each queue begins and ends, and the moves in and out of it.

The lowest position is the front. Positions may have holes, left by cancelled jobs. The table `holes` lists those, so
that the length of a queue follows from its ends and its holes without counting. Statements run at once, because the
next job of the batch may need their effect. Never begins or ends a transaction, and nothing read here outlives one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from fileq.core.job import Job, decode_or_none

_SEARCHED_AT_ONCE = 500


class QueuedRow(NamedTuple):
    """One job in a queue, and its position; `job` is None if the bytes are not a job."""

    position: int
    raw: bytes
    job: Job | None


def queues_with_jobs(db: sqlite3.Connection) -> Iterator[str]:
    """Every queue that holds a job, those of other configurations too. Skips along the index, one lookup a queue."""
    last = ""
    while (found := db.execute("SELECT min(queue) FROM queued WHERE queue > ?", (last,)).fetchone()[0]) is not None:
        yield found
        last = found


def queue_length(db: sqlite3.Connection, queue: str) -> int:
    """The length of a queue that holds a job, from its ends and its holes: three index lookups, however long it is."""
    first, last = _first_and_last(db, queue)
    sql = "SELECT count(*) FROM holes WHERE queue = ? AND position > ? AND position < ?"
    holes: int = db.execute(sql, (queue, first, last)).fetchone()[0]
    return last - first + 1 - holes


def _first_and_last(db: sqlite3.Connection, queue: str) -> tuple[int, int]:
    """The positions at the ends; (1, 0) if the queue is empty."""
    # Two statements, each one index lookup: min and max in one statement would read the whole queue.
    (first,) = db.execute("SELECT min(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    (last,) = db.execute("SELECT max(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    return (1, 0) if first is None else (first, last)


def find_newest(db: sqlite3.Connection, wanted: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], int]:
    """The position of the newest job with these bytes, for each (queue, raw) that is there.

    The queue has no index by bytes, so this reads a whole queue; once for up to 500 jobs."""
    by_queue: dict[str, list[bytes]] = {}
    for queue, raw in wanted:
        by_queue.setdefault(queue, []).append(raw)
    found: dict[tuple[str, bytes], int] = {}
    for queue, raws in by_queue.items():
        for start in range(0, len(raws), _SEARCHED_AT_ONCE):
            some = raws[start : start + _SEARCHED_AT_ONCE]
            # The unary plus makes SQLite read the queue once, in index order, and compare each row with all of them.
            marks = ", ".join("?" * len(some))
            sql = f"SELECT raw, max(position) FROM queued WHERE queue = ? AND +raw IN ({marks}) GROUP BY raw"
            found.update(((queue, raw), position) for raw, position in db.execute(sql, (queue, *some)))
    return found


class QueueTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._ends: dict[str, list[int]] = {}  # queue → the free positions before its first and after its last job
        self._located: dict[tuple[str, bytes], int | None] = {}
        self.has_pushed = False

    def push(self, queue: str, raw: bytes, *, front: bool) -> int:
        """Returns its position."""
        ends = self._ends.get(queue) or self._find_ends(queue)
        position = ends[not front]
        ends[not front] += -1 if front else 1
        if front:
            self._db.execute("DELETE FROM holes WHERE queue = ? AND position = ?", (queue, position))
        self._db.execute("INSERT INTO queued VALUES (?, ?, ?)", (queue, position, raw))
        self.has_pushed = True
        return position

    def _find_ends(self, queue: str) -> list[int]:
        first, last = _first_and_last(self._db, queue)
        if first > last:
            # Positions begin again at 1, where old holes would make the length too small.
            self._db.execute("DELETE FROM holes WHERE queue = ?", (queue,))
        ends = self._ends[queue] = [first - 1, last + 1]
        return ends

    def fronts(self, queue: str, limit: int) -> list[QueuedRow]:
        """The next jobs of a queue, front first. They stay until `remove` is called."""
        return [QueuedRow(at, raw, decode_or_none(raw)) for at, raw in self.raws(queue, limit)]

    def raws(self, queue: str, limit: int) -> list[tuple[int, bytes]]:
        """Position and bytes of the first jobs of a queue, front first."""
        sql = "SELECT position, raw FROM queued WHERE queue = ? ORDER BY position LIMIT ?"
        return self._db.execute(sql, (queue, limit)).fetchall()

    def remove(self, positions: list[tuple[str, int]]) -> None:
        """Removes jobs at the front of their queues, by (queue, position)."""
        self._db.executemany("DELETE FROM queued WHERE queue = ? AND position = ?", positions)

    def locate(self, wanted: Collection[tuple[str, bytes]]) -> None:
        """Finds jobs that `remove_newest` will remove in this transaction, in one pass for all of them."""
        found = find_newest(self._db, wanted)
        self._located = {key: found.get(key) for key in wanted}

    def locate_at(self, queue: str, raw: bytes, position: int) -> None:
        """As locate(), for one job and without reading the queue, if the job is at this position."""
        sql = "SELECT 1 FROM queued WHERE queue = ? AND position = ? AND raw = ?"
        if self._db.execute(sql, (queue, position, raw)).fetchone() is not None:
            self._located[queue, raw] = position

    def remove_newest(self, queue: str, raw: bytes) -> bool:
        """Removes the newest job with these bytes, wherever it is; False if there is none.

        Reads the whole queue, unless `locate` or `locate_at` has found it."""
        key = (queue, raw)
        position = self._located.pop(key) if key in self._located else find_newest(self._db, [key]).get(key)
        if position is None:
            return False
        self.remove_anywhere(queue, [position])
        return True

    def remove_anywhere(self, queue: str, positions: Sequence[int]) -> None:
        """Removes the jobs at these positions of a queue, and lists the holes they leave."""
        if not positions:
            return
        at = [(queue, position) for position in positions]
        self.remove(at)
        self._db.executemany("INSERT OR REPLACE INTO holes VALUES (?, ?)", at)
        # A hole outside the new ends is no hole: the next jobs will be pushed there.
        before, after = self._find_ends(queue)
        sql = "DELETE FROM holes WHERE queue = ? AND (position <= ? OR position >= ?)"
        self._db.execute(sql, (queue, before, after))
