"""Turns a database of this release into one of an older schema, for the tests of migrations."""

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
}


def downgrade(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for added, (columns, tables) in ADDED.items():
            if added > version:
                for column in columns:
                    db.execute(f"ALTER TABLE records DROP COLUMN {column}")
                for table in tables:
                    db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {version}")
