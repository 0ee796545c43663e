"""Who is a member of which batch: marks in the records, and the table batch_members for the few that no record marks.

An unfinished or dead member is marked in its own record. The record is written anyway when the job changes, and the
index of these marks is in the order in which the jobs were enqueued, so a member costs the same in a batch of any size.
batch_members has the members whose record was lost, which a trigger of the database puts there, and the jobs that had
ended when they joined.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Callable, Collection

from fileq.brokers.batches import MemberPage
from fileq.brokers.sqlite.rows import RecordRow
from fileq.core.batch import Batch

_IDS_AT_ONCE = 500


class MemberState(enum.IntEnum):
    UNFINISHED = 0
    DEAD = 1
    KNOWN = 2  # it had ended when it joined


class BatchMembers:
    """The members of the batches of one transaction. `record` and `change_record` are those of its unit of work."""

    def __init__(
        self,
        db: sqlite3.Connection,
        record: Callable[[str], RecordRow | None],
        change_record: Callable[[RecordRow], RecordRow],
    ) -> None:
        self._db = db
        self._record = record
        self._change_record = change_record
        self._has_unmarked: dict[str, bool] = {}  # by id of the batch, as far as it was needed

    def put(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Makes a job a member in this state; False if it is one already."""
        if self.has(batch, id, state):
            return False
        record = self._record(id)
        if state is not MemberState.KNOWN and record is not None and record.batch == batch.id:
            self._change_record(record).member = state
        else:
            self._db.execute("INSERT INTO batch_members VALUES (?, ?, ?)", (batch.id, state, id))
            self._has_unmarked[batch.id] = True
        return True

    def keep(self, record: RecordRow) -> None:
        """Keeps a member whose record is replaced in the table."""
        if record.member is not None:
            values = record.batch, record.member, record.id
            self._db.execute("INSERT OR IGNORE INTO batch_members VALUES (?, ?, ?)", values)
            self._has_unmarked[record.batch] = True

    def take(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Removes a member in this state; False if there is none."""
        if (record := self._marked(batch, id, state)) is not None:
            self._change_record(record).member = None
            return True
        sql = "DELETE FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self._may_be_unmarked(batch) and self._db.execute(sql, (batch.id, state, id)).rowcount > 0

    def has(self, batch: Batch, id: str, *states: MemberState) -> bool:
        if any(self._marked(batch, id, state) is not None for state in states):
            return True
        sql = "SELECT 1 FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self._may_be_unmarked(batch) and any(
            self._db.execute(sql, (batch.id, state, id)).fetchone() is not None for state in states
        )

    def _marked(self, batch: Batch, id: str, state: MemberState) -> RecordRow | None:
        """The record of this member, if it is marked there."""
        record = self._record(id)
        return record if record is not None and record.batch == batch.id and record.member == state else None

    def _may_be_unmarked(self, batch: Batch) -> bool:
        """Whether the batch has members in the table. Nearly none has; then no member is looked up there."""
        if batch.id not in self._has_unmarked:
            found = self._db.execute("SELECT 1 FROM batch_members WHERE batch = ? LIMIT 1", (batch.id,)).fetchone()
            self._has_unmarked[batch.id] = found is not None
        return self._has_unmarked[batch.id]


def delete_members(db: sqlite3.Connection, batch_id: str) -> None:
    """Deletes the members of a batch whose time is over. Marks in records stay: they mean nothing without the batch."""
    db.execute("DELETE FROM batch_members WHERE batch = ?", (batch_id,))


def clear_marks(db: sqlite3.Connection, batch_id: str) -> None:
    """Removes the marks that an earlier batch of this id left in records. The caller has read none of these records."""
    db.execute("UPDATE records SET member = NULL WHERE batch = ? AND member IS NOT NULL", (batch_id,))


def member_page(db: sqlite3.Connection, batch_id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
    """A page of members. Those of the table come first; their cursors are `i` and an id. Then the marked ones follow,
    with `n` and the number of the record."""
    rows: list[tuple[str, str]] = []
    if not cursor.startswith("n"):
        sql = "SELECT 'i' || id, id FROM batch_members WHERE batch = ? AND state = ? AND id > ? ORDER BY id LIMIT ?"
        rows = db.execute(sql, (batch_id, state, cursor[1:], limit + 1)).fetchall()
    if len(rows) <= limit:
        after = int(cursor[1:]) if cursor.startswith("n") else 0
        where = "batch = ? AND member = ? AND number > ?"
        sql = f"SELECT 'n' || number, id FROM records WHERE {where} ORDER BY number LIMIT ?"
        rows += db.execute(sql, (batch_id, state, after, limit + 1 - len(rows))).fetchall()
    ids = tuple(id for _, id in rows[:limit])
    return MemberPage(ids, rows[limit - 1][0] if len(rows) > limit else "")


def unfinished_among(db: sqlite3.Connection, batch_id: str, ids: Collection[str]) -> int:
    """How many of these jobs are unfinished members. One whose record names another batch, or none, is another job: it
    was enqueued again after the record was lost."""
    listed, found = list(ids), 0
    for start in range(0, len(listed), _IDS_AT_ONCE):
        some = listed[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        for sql in (
            f"SELECT count(*) FROM batch_members m WHERE batch = ? AND state = ? AND id IN ({marks}) "
            "AND NOT EXISTS (SELECT 1 FROM records r WHERE r.id = m.id AND r.batch != m.batch)",
            f"SELECT count(*) FROM records WHERE +batch = ? AND +member = ? AND id IN ({marks})",
        ):
            found += db.execute(sql, (batch_id, MemberState.UNFINISHED, *some)).fetchone()[0]
    return found
