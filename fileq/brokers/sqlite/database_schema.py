"""The schema of a database file: created in a new file, migrated in an old one, refused in a newer one.

PRAGMA user_version holds the schema's number; application_id marks the file as fileq's. Both are written in the
transaction that creates or migrates the tables, so a kill -9 leaves the old schema or the new one. A file of another
program is never changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping

import msgspec

from fileq.brokers.sqlite.file_access import NEW_MODE
from fileq.core.errors import BrokerError, BrokerUnavailable

VERSION = 9
APPLICATION_ID = 0x66696C71  # "filq"
OLDEST_SQLITE = (3, 35, 0)  # RETURNING

Migration = Callable[[sqlite3.Connection], None]


def _add_holes(connection: sqlite3.Connection) -> None:
    """From 1 to 2: lists the holes that cancelled jobs left, so that a queue's ends give its length."""
    connection.execute(
        "CREATE TABLE holes (queue TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (queue, position)) "
        "WITHOUT ROWID"
    )
    rebuild_holes(connection)


def rebuild_holes(connection: sqlite3.Connection) -> None:
    """Lists every hole anew, within the caller's transaction. Reads all queues."""
    connection.execute("DELETE FROM holes")
    last: tuple[str, int] | None = None
    for queue, position in connection.execute("SELECT queue, position FROM queued ORDER BY queue, position"):
        if last is not None and last[0] == queue:
            missing = ((queue, hole) for hole in range(last[1] + 1, position))
            connection.executemany("INSERT INTO holes VALUES (?, ?)", missing)
        last = queue, position


def _add_deferrals(connection: sqlite3.Connection) -> None:
    """From 2 to 3: why and how often a job was deferred, where its file was moved to, and the resets of breakers.
    SQLite adds such columns without rewriting the rows."""
    connection.execute("ALTER TABLE records ADD COLUMN deferred TEXT NOT NULL DEFAULT ''")
    connection.execute("ALTER TABLE records ADD COLUMN deferred_count INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE records ADD COLUMN moved_to BLOB NOT NULL DEFAULT x''")
    connection.execute("CREATE TABLE breaker_resets (route TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID")


def _add_after_producers_limits_and_orders(connection: sqlite3.Connection) -> None:
    """From 3 to 4: the earlier jobs of the same file, what each producer reported last, the limits of routes, and
    what is still to be done with files."""
    connection.execute("ALTER TABLE records ADD COLUMN after BLOB NOT NULL DEFAULT x''")
    connection.execute(
        "CREATE TABLE producers (id TEXT PRIMARY KEY, info BLOB NOT NULL, boot TEXT NOT NULL, "
        "alive_until_ms INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE holders (route TEXT NOT NULL, slot TEXT NOT NULL, raw BLOB NOT NULL, PRIMARY KEY (route, slot)) "
        "WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE route_windows (route TEXT PRIMARY KEY, boot TEXT NOT NULL, ends_ms INTEGER NOT NULL, "
        "started INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE orders (id TEXT PRIMARY KEY, slot TEXT NOT NULL, at_ms INTEGER NOT NULL, body BLOB NOT NULL) "
        "WITHOUT ROWID"
    )


def _add_since(connection: sqlite3.Connection) -> None:
    """From 4 to 5: when the delay of a job began."""
    connection.execute("ALTER TABLE records ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0")


def _add_jobs_that_make_jobs(connection: sqlite3.Connection) -> None:
    """From 5 to 6: unique keys, the files that jobs made, the catalog and the schedules."""
    connection.execute("ALTER TABLE records ADD COLUMN extra BLOB NOT NULL DEFAULT x''")
    connection.execute("CREATE TABLE unique_keys (key TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID")
    connection.execute(
        "CREATE TABLE made (path BLOB PRIMARY KEY, id TEXT NOT NULL, expires_ms INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX made_expiring ON made (expires_ms)")
    connection.execute(
        "CREATE TABLE documents (kind TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL, "
        "body BLOB NOT NULL, PRIMARY KEY (kind, name))"
    )
    connection.execute(
        "CREATE TABLE catalog_revisions (kind TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE schedules (name TEXT PRIMARY KEY, revision TEXT NOT NULL, next_ms INTEGER NOT NULL, "
        "last_ms INTEGER NOT NULL, last_job_id TEXT NOT NULL, is_paused INTEGER NOT NULL, runs INTEGER NOT NULL, "
        "missed INTEGER NOT NULL) WITHOUT ROWID"
    )


def _add_batches(connection: sqlite3.Connection) -> None:
    """From 6 to 7: batches and their members."""
    connection.execute(
        "CREATE TABLE batches (id TEXT PRIMARY KEY, parent TEXT NOT NULL, created_ms INTEGER NOT NULL, "
        "finished_ms INTEGER NOT NULL, facts BLOB NOT NULL, fixed BLOB NOT NULL)"
    )
    connection.execute("CREATE INDEX batches_by_age ON batches (created_ms, id)")
    connection.execute("CREATE INDEX batches_unfinished ON batches (created_ms, id) WHERE finished_ms = 0")
    connection.execute("CREATE INDEX batches_expiring ON batches (finished_ms) WHERE finished_ms > 0")
    connection.execute("CREATE INDEX batches_by_parent ON batches (parent) WHERE parent <> ''")
    connection.execute(
        "CREATE TABLE batch_members (batch TEXT NOT NULL, state INTEGER NOT NULL, id TEXT NOT NULL, "
        "PRIMARY KEY (batch, state, id)) WITHOUT ROWID"
    )


def _mark_members_in_records(connection: sqlite3.Connection) -> None:
    """From 7 to 8: the batch of a job is a column of its record, and its record says whether it is unfinished or dead.
    Only members without a record stay in batch_members."""
    connection.execute("ALTER TABLE records ADD COLUMN batch TEXT NOT NULL DEFAULT ''")
    connection.execute("ALTER TABLE records ADD COLUMN member INTEGER")
    found = connection.execute("SELECT extra, number FROM records WHERE instr(extra, ?)", (b'"batch":',)).fetchall()
    batches = ((msgspec.json.decode(extra).get("batch", ""), number) for extra, number in found)
    connection.executemany("UPDATE records SET batch = ? WHERE number = ?", batches)
    connection.execute(
        "UPDATE records SET member = (SELECT min(state) FROM batch_members AS m "
        "WHERE m.batch = records.batch AND m.state < 2 AND m.id = records.id) WHERE batch <> ''"
    )
    connection.execute(
        "DELETE FROM batch_members WHERE state < 2 AND EXISTS (SELECT 1 FROM records AS r "
        "WHERE r.id = batch_members.id AND r.batch = batch_members.batch AND r.member = batch_members.state)"
    )
    connection.execute("CREATE INDEX records_members ON records (batch, member) WHERE member IS NOT NULL")
    connection.execute(
        "CREATE TRIGGER members_without_record AFTER DELETE ON records WHEN OLD.member IS NOT NULL "
        "BEGIN INSERT OR IGNORE INTO batch_members VALUES (OLD.batch, OLD.member, OLD.id); END"
    )


def _add_deadlines(connection: sqlite3.Connection) -> None:
    """From 8 to 9: the index of deadlines. The deadline of a job that waits already is noticed when it is claimed."""
    connection.execute(
        "CREATE TABLE deadlines (id TEXT PRIMARY KEY, look_ms INTEGER NOT NULL, position INTEGER) WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX deadlines_by_look ON deadlines (look_ms, id)")


# From each older schema to the next. A migration must not end the transaction it runs in.
MIGRATIONS: Mapping[int, Migration] = {
    1: _add_holes,
    2: _add_deferrals,
    3: _add_after_producers_limits_and_orders,
    4: _add_since,
    5: _add_jobs_that_make_jobs,
    6: _add_batches,
    7: _mark_members_in_records,
    8: _add_deadlines,
}


def check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise BrokerError(f"SQLite is {sqlite3.sqlite_version}; fileq needs {wanted} or later, or broker: redis")


def is_current(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file has the schema of this version. Raises for a file that can never have it."""
    return _checked_version(connection, path) == VERSION


def prepare(connection: sqlite3.Connection, path: str, *, create: bool) -> None:
    """Creates or migrates the schema, or raises. The caller must hold the write lock."""
    version = _checked_version(connection, path)
    if version == 0 and not create:
        raise no_database(path)
    # After the checks above: a file of another program must stay unchanged.
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerError(f"database {path}: its journal mode is {mode!r} and can't be made 'wal' on this file system")
    if version == 0:
        _in_transaction(connection, _create, VERSION)
    elif version < VERSION:
        _back_up(connection, f"{path}.backup-v{version}")
        _in_transaction(connection, lambda c: _migrate(c, path, version), VERSION)


def no_database(path: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"no database at {path}; start a producer or worker to create one, or set sqlite.path")


def version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def newer(path: str, version: int) -> BrokerError:
    return BrokerError(
        f"database {path} was written by a newer fileq (schema {version}, this one knows {VERSION}); upgrade fileq"
    )


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whose file it is, its schema, and the number of its tables."""
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = version_of(connection)
    return owner, version, connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


def _checked_version(connection: sqlite3.Connection, path: str) -> int:
    """The file's schema; 0 for an empty file."""
    owner, version, tables = _identity(connection)
    if owner != APPLICATION_ID and (version or tables):
        # Another process may have created the schema after `owner` was read.
        owner, version, tables = _identity(connection)
    if owner == 0 and version == 0 and tables == 0:
        return 0
    if owner != APPLICATION_ID or version == 0:
        raise BrokerError(f"database {path} is another program's; set sqlite.path to a file of its own")
    if version > VERSION:
        raise newer(path, version)
    return version


def _create(connection: sqlite3.Connection) -> None:
    from importlib.resources import files  # needed once in the life of a database, and slow to import

    script = files(__package__).joinpath("schema.sql").read_text()
    # executescript would commit the surrounding transaction.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _migrate(connection: sqlite3.Connection, path: str, version: int) -> None:
    for step in range(version, VERSION):
        if step not in MIGRATIONS:
            raise BrokerError(f"database {path} has schema {version}; this fileq can't migrate from {step}")
        MIGRATIONS[step](connection)


def _in_transaction(connection: sqlite3.Connection, change: Migration, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _back_up(connection: sqlite3.Connection, path: str) -> None:
    """Copies the database. A kill -9 leaves no copy, or an unfinished one under another name."""
    unfinished = path + ".unfinished"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_MODE))
    copy = sqlite3.connect(unfinished)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # leaves one file, without -wal and -shm
    finally:
        copy.close()
    os.replace(unfinished, path)
