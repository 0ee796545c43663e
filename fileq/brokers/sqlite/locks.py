"""The two locks beside a database file. Both are flock: the kernel releases what a killed process held.

WriteLock admits one writer at a time, first come, first served. SubscriberLock lets a writer find out whether any
process subscribes to events. Neither knows SQLite.
"""

from __future__ import annotations

import fcntl
import os
from threading import Event, Lock, Thread

from fileq.brokers.sqlite.file_access import open_side_file


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
