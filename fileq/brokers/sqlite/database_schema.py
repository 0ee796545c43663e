"""The schema of a database file: created in an empty file, and refused if it is that of another version.

PRAGMA user_version holds the schema's number; application_id marks the file as fileq's. Both are written in the
transaction that creates the tables, so a kill -9 leaves an empty file or the whole schema. A file of another program,
or of another schema, is never changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from fileq.core.errors import BrokerError, BrokerUnavailable

VERSION = 1
APPLICATION_ID = 0x66696C71  # "filq"
OLDEST_SQLITE = (3, 35, 0)  # RETURNING


def check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise BrokerError(f"SQLite is {sqlite3.sqlite_version}; fileq needs {wanted} or later, or broker: redis")


def is_created(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file has its tables; not if it is empty. Raises for a file with any other content."""
    return _checked_version(connection, path) == VERSION


def prepare(connection: sqlite3.Connection, path: str, *, create: bool) -> None:
    """Creates the tables in an empty file, or raises. The caller must hold the write lock."""
    is_empty = not is_created(connection, path)
    if is_empty and not create:
        raise no_database(path)
    # After the checks above: a file of another program must stay unchanged.
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerError(f"database {path}: its journal mode is {mode!r} and can't be made 'wal' on this file system")
    if is_empty:
        create_tables(connection)


def no_database(path: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"no database at {path}; start a producer or worker to create one, or set sqlite.path")


def version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


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
    if version != VERSION:
        raise BrokerError(
            f"database {path} has schema {version} and this fileq knows {VERSION}; "
            "use the fileq that created it, or set sqlite.path to another file"
        )
    return version


@contextlib.contextmanager
def committing(connection: sqlite3.Connection) -> Iterator[None]:
    """Commits everything done in the block, or nothing if the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def create_tables(connection: sqlite3.Connection) -> None:
    from importlib.resources import files  # needed once in the life of a database, and slow to import

    script = files(__package__).joinpath("schema.sql").read_text()
    with committing(connection):
        # executescript would commit the transaction.
        statement = ""
        for line in script.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                connection.execute(statement)
                statement = ""
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
