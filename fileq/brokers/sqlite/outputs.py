"""The files that jobs made, by path. A row whose time is over counts as absent, even if it is not deleted yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from fileq.brokers.sqlite.rows import RecordRow, find_makers
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.core.outcome import Output

_EXPIRED_AT_ONCE = 500


def keep_outputs(work: UnitOfWork, record: RecordRow, outputs: Sequence[Output]) -> None:
    """Keeps the outputs of a job that is completed."""
    if outputs:
        record.change_facts(outputs=tuple(outputs))
        expires_ms = work.now_ms + int(work.config.worker.history_ttl * 1000)
        rows = [(output.path, record.id, expires_ms) for output in outputs]
        work.db.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", rows)
        forget_outputs(work)


def forget_outputs(work: UnitOfWork) -> None:
    """Deletes some of the rows whose time is over."""
    sql = "DELETE FROM made WHERE path IN (SELECT path FROM made WHERE expires_ms <= ? LIMIT ?)"
    work.db.execute(sql, (work.now_ms, _EXPIRED_AT_ONCE))


def makers(db: sqlite3.Connection, paths: Sequence[bytes], now_ms: int) -> list[str | None]:
    found = find_makers(db, paths, now_ms)
    return [found.get(path) for path in paths]
