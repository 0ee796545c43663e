"""The batches of one transaction: read when they are needed, changed in place, written at its end.

A batch whose time is over counts as absent, even if it is not deleted yet. Its members are in batch_members.py.
"""

from __future__ import annotations

import sqlite3

import msgspec
from msgspec.structs import replace

from fileq.brokers.sqlite.batch_members import clear_marks, delete_members
from fileq.core.batch import KEPT_MS, Batch, BatchState, Callback

_EXPIRED_AT_ONCE = 10
_COLUMNS = "facts, fixed"

_encoder = msgspec.json.Encoder()
_facts_decoder = msgspec.json.Decoder(Batch)


class FixedFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What never changes, apart from the counts: it may be long."""

    callbacks: tuple[Callback, ...] = ()
    info: bytes = b""


_fixed_decoder = msgspec.json.Decoder(FixedFacts)


def decode_batch(facts: bytes, fixed: bytes) -> Batch:
    more = _fixed_decoder.decode(fixed)
    batch = _facts_decoder.decode(facts)
    batch.callbacks, batch.info = more.callbacks, more.info
    return batch


def find_batch(db: sqlite3.Connection, id: str, now_ms: int) -> Batch | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
    batch = decode_batch(*row) if row is not None else None
    is_over = batch is not None and batch.state is BatchState.FINISHED and batch.finished_ms + KEPT_MS <= now_ms
    return None if is_over else batch


class BatchTable:
    def __init__(self, db: sqlite3.Connection, now_ms: int) -> None:
        self._db = db
        self._now_ms = now_ms
        self._batches: dict[str, Batch | None] = {}
        self._changed: dict[str, None] = {}

    def find(self, id: str) -> Batch | None:
        """The batch, to read. Changes are written only after change()."""
        if not id:
            return None
        if id not in self._batches:
            self._batches[id] = find_batch(self._db, id, self._now_ms)
        return self._batches[id]

    def change(self, batch: Batch) -> Batch:
        self._changed[batch.id] = None
        return batch

    def create(self, batch: Batch) -> None:
        self._delete(batch.id)  # one whose time is over
        clear_marks(self._db, batch.id)
        self._batches[batch.id] = batch
        fixed = _encoder.encode(FixedFacts(batch.callbacks, batch.info))
        values = (batch.id, batch.parent, batch.created_ms, 0, b"", fixed)
        self._db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", values)
        self.change(batch)

    def children(self, id: str) -> list[Batch]:
        found = self._db.execute("SELECT id FROM batches WHERE parent = ? ORDER BY id", (id,)).fetchall()
        return [batch for (child,) in found if (batch := self.find(child)) is not None]

    def write(self) -> None:
        rows = []
        for id in self._changed:
            if (batch := self._batches[id]) is not None:
                facts = _encoder.encode(replace(batch, callbacks=(), info=b""))
                rows.append((facts, batch.finished_ms, id))
        if rows:
            self._db.executemany("UPDATE batches SET facts = ?, finished_ms = ? WHERE id = ?", rows)

    def forget_expired(self) -> None:
        """Deletes some of the batches whose time is over."""
        sql = "SELECT id FROM batches WHERE finished_ms > 0 AND finished_ms <= ? LIMIT ?"
        for (id,) in self._db.execute(sql, (self._now_ms - KEPT_MS, _EXPIRED_AT_ONCE)).fetchall():
            self._delete(id)

    def _delete(self, id: str) -> None:
        delete_members(self._db, id)
        self._db.execute("DELETE FROM batches WHERE id = ?", (id,))
