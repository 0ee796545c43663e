"""Translates SQLite's errors at the boundary: BrokerUnavailable if the same call may succeed later, else BrokerError.

Every message names the file and the next step.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from fileq.core.errors import BrokerError, BrokerUnavailable

_UNAVAILABLE = {
    sqlite3.SQLITE_PERM: "access was refused; check the permissions of the file and its directory",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; fileq will try again",
    sqlite3.SQLITE_LOCKED: "another connection keeps it locked; fileq will try again",
    sqlite3.SQLITE_NOMEM: "memory ran out",
    sqlite3.SQLITE_READONLY: "it can't be written to; check the permissions of the file, its directory and the mount",
    sqlite3.SQLITE_INTERRUPT: "the call was interrupted",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk and the kernel's log",
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened; check the permissions of the file and its directory",
    sqlite3.SQLITE_PROTOCOL: "another process keeps it locked; fileq will try again",
}
_REFUSED = {
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup, or move it away to start with an empty one",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; set sqlite.path to another file, or move this one away",
}


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: str) -> BrokerError:
    # Errors of the sqlite3 module itself carry no code. The low byte of a code is its class.
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if kind in _UNAVAILABLE:
        return BrokerUnavailable(f"database {path}: {error}: {_UNAVAILABLE[kind]}")
    return BrokerError(f"database {path}: {error}" + (f": {_REFUSED[kind]}" if kind in _REFUSED else ""))
