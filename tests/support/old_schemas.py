"""Turns a database of this release into one of an older schema, for the tests of migrations."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

# What each schema added: columns of `records`, and tables.
ADDED: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    2: ((), ("holes",)),
    3: (("deferred", "deferred_count", "moved_to"), ("breaker_resets",)),
    4: (("after",), ("producers", "holders", "route_windows", "orders")),
    5: (("since_ms",), ()),
    6: (("extra",), ("unique_keys", "made", "documents", "catalog_revisions", "schedules")),
    7: ((), ("batches", "batch_members")),
    8: (("batch", "member"), ()),
    9: ((), ("deadlines",)),
}


def downgrade(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        _list_members(db)
        for added, (columns, tables) in ADDED.items():
            if added > version:
                for column in columns:
                    db.execute(f"ALTER TABLE records DROP COLUMN {column}")
                for table in tables:
                    db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {version}")


def _list_members(db: sqlite3.Connection) -> None:
    """Undoes schema 8: every member is a row of batch_members again, and the batch of a job is in its extra facts."""
    db.execute("DROP TRIGGER members_without_record")
    db.execute("DROP INDEX records_members")
    db.execute("INSERT INTO batch_members SELECT batch, member, id FROM records WHERE member IS NOT NULL")
    for number, batch, extra in db.execute("SELECT number, batch, extra FROM records WHERE batch <> ''").fetchall():
        facts = json.loads(extra or "{}") | {"batch": batch}
        body = json.dumps(facts, separators=(",", ":")).encode()
        db.execute("UPDATE records SET extra = ? WHERE number = ?", (body, number))
