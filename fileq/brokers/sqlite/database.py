"""The database file of one broker: its connections, its transactions and its locks. Knows no verb and no job.

One connection writes, behind a thread lock and then the flock on `<path>-lock`. Another connection only reads, so
that an operator's query never delays the pump. There is no writer thread: handing each transaction over and back would
cost more than the lock, and the calling thread has to wait for the reply anyway.

What a kill -9 leaves:
1. before COMMIT: nothing of the transaction. Its pages are at most in the log (`-wal`), without the commit mark, and
   the next process that opens the file skips them. The kernel releases the locks.
2. in COMMIT: all of the transaction or nothing, depending on whether the commit mark is in the log.
3. after COMMIT: all of it, even after a power cut (synchronous = FULL). A caller that did not get the reply repeats
   the call; every verb is idempotent.
4. while the log is copied back into the file: the log is still whole, and the copying starts again.
5. while the file is created: an empty file or the whole schema.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from threading import Event, Lock, Thread
from urllib.parse import quote

import msgspec

from fileq.brokers.local_waiter import take_lease
from fileq.brokers.sqlite import database_schema
from fileq.brokers.sqlite.file_access import open_side_file, protect_database
from fileq.core.errors import BrokerError, BrokerRemoved, BrokerUnavailable, ConfigError
from fileq.core.units import two_units
from fileq.files.paths import MISSING, advice_for, directory_problem
from fileq.files.status import filesystem_type, is_network

LOCK_TIMEOUT_S = 5.0
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_LOG_LIMIT_BYTES = 64 * 1024 * 1024  # of an emptied -wal that stay allocated


class MemoryDatabase:
    """A database without a file: one connection, which the threads of one process use under one lock."""

    boot = "this process"  # leases end with it

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection = _in_memory()
        weakref.finalize(self, self.connection.close)
        _empty().backup(self.connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits everything done in the block, or nothing if the block raises."""
        with self.lock, database_schema.committing(self.connection):
            yield self.connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A view to read. Writers wait meanwhile."""
        with self.lock:
            yield self.connection


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)


@functools.cache
def _empty() -> sqlite3.Connection:
    """A database with empty tables: to copy them takes a hundredth of the time that it takes to create them."""
    connection = _in_memory()
    atexit.register(connection.close)
    database_schema.create_tables(connection)
    return connection


class Database:
    """Everything about the file that outlives a transaction. It must be closed, and may be closed twice."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = os.path.abspath(path)
        self.boot = boot_id()
        self.lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False
        database_schema.check_sqlite()
        _check_location(self.path, create=create)
        with contextlib.ExitStack() as undo, translated(self.path):
            with self._permissions_named():
                status = protect_database(self.path, create=create)
            self.connection = self._connect_writer(undo, create=create)
            # Without the lock if possible: opening to read must not wait for a writer that hangs. And before the locks
            # are created: nothing is left beside a file that is refused.
            is_created = database_schema.is_created(self.connection, self.path)
            self._write_lock, self.subscribers, self.leases = self._open_locks(undo, status)
            if not is_created:
                with self._exclusive():
                    database_schema.prepare(self.connection, self.path, create=create)
            self._reader = self.connect_reader()
            self._identity = _identity(self.path)
            undo.pop_all()
        _databases.add(self)

    def _open_locks(
        self, undo: contextlib.ExitStack, database: os.stat_result
    ) -> tuple[WriteLock, SubscriberLock, Leases]:
        with self._permissions_named():
            write_lock = WriteLock(self.path + "-lock", database)
            undo.callback(write_lock.close)
            subscribers = SubscriberLock(self.path + "-listen", database)
            undo.callback(subscribers.close)
            leases = Leases(self.path + "-leases", database, self.boot)
            undo.callback(leases.close)
        return write_lock, subscribers, leases

    @contextlib.contextmanager
    def _permissions_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BrokerUnavailable(
                f"database {self.path}: {error.strerror}: {error.filename}; check the permissions of its directory, "
                "and run fileq as the user who owns the database"
            ) from error

    def _connect_writer(self, undo: contextlib.ExitStack, *, create: bool) -> sqlite3.Connection:
        connection = self._connect("rwc" if create else "rw")
        undo.callback(connection.close)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        # A URI, because only that takes a mode: without it, opening to read would create the file.
        return sqlite3.connect(
            f"file:{quote(os.fsencode(self.path))}?mode={mode}",
            uri=True,
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )

    def connect_reader(self) -> sqlite3.Connection:
        """A new connection that can't write. The caller closes it."""
        connection = self._connect("rw")
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._write_lock.acquire(LOCK_TIMEOUT_S):
            raise BrokerUnavailable(
                f"database {self.path}: another process has been writing for {two_units(LOCK_TIMEOUT_S)}; "
                "a later try may succeed"
            )
        try:
            yield
        finally:
            self._write_lock.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits everything done in the block, or nothing if the block raises."""
        self.check_usable()
        with self.lock, translated(self.path):
            self.check_usable()
            with self._exclusive(), database_schema.committing(self.connection):
                self._check_same_file()
                yield self.connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A consistent read-only view that later writes don't change. Keep it short: the log grows while it is open."""
        self.check_usable()
        with self._read_lock, translated(self.path):
            self.check_usable()
            self.check_present()
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    def check_present(self) -> None:
        """Raises BrokerRemoved if the file at this path is not the open one. One stat."""
        # A removed file stays writable for a process that has it open, and what is written there is lost.
        if _identity(self.path) != self._identity:
            raise BrokerRemoved(f"database {self.path} was removed or replaced while in use; restart fileq")

    def _check_same_file(self) -> None:
        self.check_present()
        # Another fileq may have changed the tables; the statements here are for this schema only.
        version = database_schema.version_of(self.connection)
        if version != database_schema.VERSION:
            raise BrokerError(
                f"database {self.path} became schema {version} while in use and this fileq knows "
                f"{database_schema.VERSION}; restart it with the version of the others"
            )

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
                self.subscribers.close()
                self.leases.close()
                self._write_lock.close()

    def abandon(self) -> None:
        """In a forked child: closes the copies of the locks and leaves the connections to the parent."""
        self._write_lock.abandon()
        self.subscribers.close()
        self.leases.close()


def boot_id() -> str:
    """Identifies the boot from which CLOCK_MONOTONIC counts."""
    try:
        with open(BOOT_ID_FILE) as file:
            return file.read().strip()
    except OSError as error:
        raise BrokerError(f"{BOOT_ID_FILE}: {error.strerror}; leases need it, so use broker: redis here") from error


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_location(path: str, *, create: bool) -> None:
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        raise ConfigError(f"sqlite.path is {path}, a directory; it must be a file")
    problem = directory_problem(os.fsencode(directory))
    if problem not in ("", MISSING):
        raise BrokerUnavailable(
            f"no database at {path}: {directory} {problem}; {advice_for(problem)}, or set sqlite.path"
        )
    if not create and not os.path.exists(path):
        raise database_schema.no_database(path)
    if problem:
        raise BrokerUnavailable(f"no database at {path}; create the directory {directory} or set sqlite.path")
    filesystem = filesystem_type(path)
    if is_network(filesystem):
        raise ConfigError(
            f"sqlite.path is {path}, on a network file system ({filesystem}) where locks are not reliable; "
            "set it to a local disk, or use broker: redis"
        )


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _abandon_all() -> None:
    for database in list(_databases):
        database.abandon()


os.register_at_fork(after_in_child=_abandon_all)


# The two locks beside a database file. Both are flock: the kernel releases what a killed process held.
#
# WriteLock admits one writer at a time, first come, first served. SubscriberLock lets a writer find out whether any
# process subscribes to events. Neither knows SQLite.


class Leases:
    """take_lease() on a side file: a lease is renewed every second, and each transaction waits for the disk. Its times
    are those of a monotonic clock. What a kill -9 leaves may be no leases at all."""

    def __init__(self, path: str, database: os.stat_result, boot: str) -> None:
        self._fd = open_side_file(path, database, writes=True)
        self._boot = boot
        self._is_closed = False

    def take(self, name: str, holder: str, ttl_ms: int, instead_of: str, now_ms: int) -> str:
        """A process that can't write the file has every lease."""
        # Another process has the lock for microseconds, or was stopped: ask again later.
        if self._is_closed or not _try_lock(self._fd, fcntl.LOCK_EX):
            return ""
        try:
            leases = self._read()
            taken_by = take_lease(leases, name, holder, ttl_ms, instead_of, now_ms)
            encoded = msgspec.json.encode((self._boot, leases))
            os.pwrite(self._fd, encoded, 0)
            os.ftruncate(self._fd, len(encoded))
        except OSError:
            return holder
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return taken_by

    def _read(self) -> dict[str, tuple[str, int]]:
        """Empty if they are of an earlier boot, or were written in part."""
        with contextlib.suppress(msgspec.DecodeError):
            boot, leases = _leases.decode(os.pread(self._fd, _LEASES_BYTES, 0))
            if boot == self._boot:
                return leases
        return {}

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self._fd)


_LEASES_BYTES = 1 << 16
_leases = msgspec.json.Decoder(tuple[str, dict[str, tuple[str, int]]])


class WriteLock:
    """An flock with a timeout, for one caller at a time.

    The kernel serves blocked callers of flock in their order; polling has no order. With four busy processes the
    longest wait was 13 ms against 490 ms. But a blocked flock can't be cancelled. So if the lock is taken, a thread
    blocks in the caller's place. It keeps waiting if the caller gives up, and the next caller waits for it."""

    def __init__(self, path: str, database: os.stat_result | None = None) -> None:
        self._fd = open_side_file(path, database)
        self._mutex = Lock()
        self._granted: Event | None = None  # set while a thread is blocked
        self._is_wanted = False
        self._is_closed = False

    def acquire(self, timeout_s: float) -> bool:
        with self._mutex:
            if self._granted is None:
                if _try_lock(self._fd, fcntl.LOCK_EX):
                    return True
                self._granted = Event()
                Thread(target=self._block, args=(self._granted,), name="fileq-flock", daemon=True).start()
            granted, self._is_wanted = self._granted, True
        is_ours = False
        try:
            is_ours = granted.wait(timeout_s)
        finally:
            # The lock may be granted just after the timeout, or a signal handler may raise: release it here then.
            with self._mutex:
                self._is_wanted = False
                if granted.is_set() and not is_ours:
                    self.release()
        return is_ours

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _block(self, granted: Event) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        with self._mutex:
            self._granted = None
            if self._is_closed:
                os.close(self._fd)
            elif self._is_wanted:
                granted.set()
            else:
                self.release()

    def close(self) -> None:
        with self._mutex:
            is_blocked, was_closed, self._is_closed = self._granted is not None, self._is_closed, True
            if not is_blocked and not was_closed:
                os.close(self._fd)

    def abandon(self) -> None:
        """In a forked child: closes its copy of the descriptor, which would keep the parent's lock after its death."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._fd)


class SubscriberLock:
    """Each subscriber holds a shared lock. A writer that can take the lock exclusively knows that there are none.

    exist() and add() need the write lock: two writers that check at once would each take the other for a
    subscriber."""

    def __init__(self, path: str, database: os.stat_result | None = None) -> None:
        self._path = path
        self._database = database
        self._fd = open_side_file(path, database)
        self._subscribers: set[int] = set()
        self._is_closed = False

    def exist(self) -> bool:
        """Whether any process has a subscriber."""
        if not _try_lock(self._fd, fcntl.LOCK_EX):
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def add(self) -> int:
        """Adds a subscriber, for remove(). Every later transaction of any process sees it."""
        fd = open_side_file(self._path, self._database)
        fcntl.flock(fd, fcntl.LOCK_SH)
        self._subscribers.add(fd)
        return fd

    def remove(self, fd: int) -> None:
        if fd in self._subscribers:
            self._subscribers.discard(fd)
            os.close(fd)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for fd in [self._fd, *self._subscribers]:
                os.close(fd)
            self._subscribers.clear()


def _try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Translates SQLite's errors at the boundary: BrokerUnavailable if the same call may succeed later, else BrokerError.
#
# Every message names the file and the next step.


_UNAVAILABLE = {
    sqlite3.SQLITE_PERM: "access was refused; check the permissions of the file and its directory",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; a later try may succeed",
    sqlite3.SQLITE_LOCKED: "another connection keeps it locked; a later try may succeed",
    sqlite3.SQLITE_NOMEM: "memory ran out",
    sqlite3.SQLITE_READONLY: "it can't be written to; check the permissions of the file, its directory and the mount",
    sqlite3.SQLITE_INTERRUPT: "the call was interrupted",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk and the kernel's log",
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened; check the permissions of the file and its directory",
    sqlite3.SQLITE_PROTOCOL: "another process keeps it locked; a later try may succeed",
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
