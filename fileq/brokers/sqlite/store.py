"""The database file of one broker: its connections, its transactions, its locks. Knows no verb and no job.

One connection writes, behind a thread lock and then the flock on `<path>-lock`; another only reads, so that
an operator's look never holds up the pump. No writer thread: handing each transaction over and back would
cost more than the lock does, and who waits for an answer may as well do the work.

What a kill -9 leaves:
1. before COMMIT: nothing of the transaction. Its pages are in the log (`-wal`) at most, without the commit
   mark, and the next to open the file skips them. The kernel lets go of the locks.
2. in COMMIT: all of it or nothing, as the commit mark is in the log or not.
3. after COMMIT: all of it, and after a power cut too (synchronous = FULL). A caller that did not hear the
   answer repeats the call; every verb bears that.
4. while the log is copied back into the file: the log is still whole, the copying starts again.
5. while the file is made or migrated: an empty file, the old schema or the new one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from urllib.parse import quote

from fileq.brokers.sqlite import schema
from fileq.brokers.sqlite.faults import translated
from fileq.brokers.sqlite.locks import Presence, WriteLock
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from fileq.files.mounts import filesystem_type, is_network

LOCK_TIMEOUT_S = 5.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LOG_LIMIT = 64 * 1024 * 1024  # bytes of an emptied -wal that stay allocated


class Store:
    """Everything about the file that outlives a transaction. Close it; it may be closed twice."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = os.path.abspath(path)
        self.boot = boot_id()
        self.lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False
        schema.check_sqlite()
        _check_place(self.path, create=create)
        with contextlib.ExitStack() as undo, translated(self.path):
            self._write_lock, self.presence = self._open_locks(undo)
            self.connection = self._open_writer(undo, create=create)
            self._reader = self.connect_reader()
            self._identity = _identity(self.path)
            undo.pop_all()
        _stores.add(self)

    def _open_locks(self, undo: contextlib.ExitStack) -> tuple[WriteLock, Presence]:
        try:
            write_lock = WriteLock(self.path + "-lock")
            undo.callback(write_lock.close)
            presence = Presence(self.path + "-listen")
            undo.callback(presence.close)
        except OSError as error:
            raise BrokerUnavailable(
                f"database {self.path}: {error.strerror}: {error.filename}; check the rights of its directory"
            ) from error
        return write_lock, presence

    def _open_writer(self, undo: contextlib.ExitStack, *, create: bool) -> sqlite3.Connection:
        connection = self._connect("rwc" if create else "rw")
        undo.callback(connection.close)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
        # Without the lock if possible: a look must not wait for a writer that hangs.
        if not schema.is_ours(connection, self.path):
            with self._alone():
                schema.prepare(connection, self.path, create=create)
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        # As a URI, for the mode: without it a look would make the file.
        return sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode={mode}",
            uri=True,
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )

    def connect_reader(self) -> sqlite3.Connection:
        """Another connection that can't write; the caller closes it."""
        connection = self._connect("rw")
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._write_lock.acquire(LOCK_TIMEOUT_S):
            raise BrokerUnavailable(
                f"database {self.path}: another process has been writing for {LOCK_TIMEOUT_S:.0f} s; it is tried again"
            )
        try:
            yield
        finally:
            self._write_lock.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that happens inside is committed as one, or, if it raises, not at all."""
        self.check_usable()
        with self.lock, translated(self.path):
            self.check_usable()
            with self._alone():
                self.connection.execute("BEGIN IMMEDIATE")
                try:
                    self._check_same_file()
                    yield self.connection
                    self.connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                    raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One consistent look at everything, whatever is written meanwhile. Keep it short: it keeps the log long."""
        self.check_usable()
        with self._read_lock, translated(self.path):
            self.check_usable()
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    def _check_same_file(self) -> None:
        # A removed file lives on for those who have it open, and what they write goes with them.
        if _identity(self.path) != self._identity:
            raise BrokerError(f"database {self.path} was removed or replaced while in use; restart fileq")
        # A newer fileq may have migrated it; our statements must not touch what it made.
        version = schema.version_of(self.connection)
        if version != schema.VERSION:
            raise BrokerError(
                f"database {self.path} became schema {version} while in use and this fileq knows {schema.VERSION}; "
                "restart it with the version of the others"
            )

    def push_raw(self, queue: str, raw: bytes) -> None:
        """An element as another program would push it: no record, no counter, no wake. For tests."""
        with self.transaction() as db:
            sql = "SELECT coalesce(max(position), 0) + 1 FROM queued WHERE queue = ?"
            (position,) = db.execute(sql, (queue,)).fetchone()
            db.execute("DELETE FROM holes WHERE queue = ? AND position = ?", (queue, position))
            db.execute("INSERT INTO queued VALUES (?, ?, ?)", (queue, position, raw))

    def check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise BrokerError(f"database {self.path} was opened by process {self._pid}; after a fork open it again")
        if self._is_closed:
            raise BrokerError(f"database {self.path} is closed")

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self.lock, self._read_lock:
            if not self._is_closed:
                self._is_closed = True
                self._reader.close()
                self.connection.close()
                self.presence.close()
                self._write_lock.close()

    def abandon(self) -> None:
        """In a forked child: give up the copies of our locks, leave the connections to the parent."""
        self._write_lock.abandon()
        self.presence.close()


def boot_id() -> str:
    """What CLOCK_MONOTONIC counts from: after a reboot it is another."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError as error:
        raise BrokerError(f"{_BOOT_ID}: {error.strerror}; leases need it, so use broker: redis here") from error


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_place(path: str, *, create: bool) -> None:
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        raise ConfigError(f"sqlite.path is {path}, a directory; it must be a file")
    if not create and not os.path.exists(path):
        raise schema.no_database(path)
    if not os.path.isdir(directory):
        raise BrokerUnavailable(f"no database at {path}; make the directory {directory} or set sqlite.path")
    filesystem = filesystem_type(path)
    if is_network(filesystem):
        raise ConfigError(
            f"sqlite.path is {path}, on a network file system ({filesystem}) where locks can't be trusted; "
            "set it to a local disk, or use broker: redis"
        )


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _abandon_all() -> None:
    for store in list(_stores):
        store.abandon()


os.register_at_fork(after_in_child=_abandon_all)
