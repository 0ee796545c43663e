"""SQLite's errors in our words: away (the same call may succeed later) or refused, always with the file's name."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from fileq.core.errors import BrokerError, BrokerUnavailable

_AWAY = {
    sqlite3.SQLITE_PERM: "access was refused; check the rights of the file and its directory",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; it is tried again",
    sqlite3.SQLITE_LOCKED: "another connection keeps it locked; it is tried again",
    sqlite3.SQLITE_NOMEM: "memory ran out",
    sqlite3.SQLITE_READONLY: "it can't be written to; check the rights of the file, its directory and the mount",
    sqlite3.SQLITE_INTERRUPT: "the call was interrupted",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk and the kernel's log",
    sqlite3.SQLITE_FULL: "the disk is full; make room on it",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened; check the rights of the file and its directory",
    sqlite3.SQLITE_PROTOCOL: "another process keeps it locked; it is tried again",
}
_BROKEN = {
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a copy, or move it away to start anew",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; set sqlite.path to another file, or move this one away",
}


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: str) -> BrokerError:
    # Errors of the sqlite3 module itself carry no code. The low byte names the kind, the rest the place.
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if kind in _AWAY:
        return BrokerUnavailable(f"database {path}: {error}: {_AWAY[kind]}")
    return BrokerError(f"database {path}: {error}" + (f": {_BROKEN[kind]}" if kind in _BROKEN else ""))
