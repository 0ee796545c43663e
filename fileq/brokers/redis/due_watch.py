"""When the next job or schedule is due, known to a scheduler without asking the server each time.

Another process may add a job that is due at once, or request to cancel one that runs. Asking the server often enough to
notice that would be the largest cost of an idle machine, because each question wakes two processes. So the server
reports changes: on a connection with CLIENT TRACKING it sends one message when a key changes that was read there. A
thread waits for it and calls `changed`.

Only a caller that asks again and again gets such a connection. It still asks once a second, because the server's clock
may step and a connection may be lost without a sign. If the server refuses tracking (the user needs
`+client|tracking`), the caller learns that nothing is reported, and has to ask often. Changes nothing on the server.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import ProtocolError, PushNotification

from fileq.brokers.redis.scripts import Command
from fileq.brokers.redis.store import DRIVER_ERRORS, InFlightCall, Link, RedisConnection, ReplyError, packed
from fileq.brokers.types import Promoted
from fileq.core.errors import BrokerError

OFTEN_S = 3.0  # a caller that asks again within this time gets a connection that watches
RETRY_S = 1.0  # after a connection could not be opened
CALM_S = 0.03  # the shortest time from an answer to the next report: jobs may be added all the time
_TRACKING: tuple[Command, ...] = (("HELLO", 3), ("CLIENT", "TRACKING", "ON"))


class DueWatch:
    """Thread-safe. `command` asks for the times: lua/next_due.lua. The server tracks the keys that the script reads."""

    def __init__(self, link: Link, command: Callable[[], Command]) -> None:
        self._link = link
        self._command = command
        self._lock = threading.Lock()
        self._changed: Callable[[], None] | None = None
        self._connection: RedisConnection | None = None
        self._reporter: _Reporter | None = None
        self._is_refused = False
        # When a connection was opened last, and when the server was asked last.
        self._tried_s = self._asked_s = -2 * OFTEN_S

    def report_changes(self, changed: Callable[[], None]) -> None:
        """From now on `changed` is called, in another thread, after a change that promoted() has not seen."""
        self._changed = changed

    def promoted(self) -> Promoted | None:
        """What promote() returns if nothing is due. None if the server refuses to say, or if report_changes() was not
        called: then the caller is no scheduler and does not wait."""
        if self._changed is None:
            return None
        with self._lock:
            now_s = time.monotonic()
            is_asked_often, self._asked_s = now_s - self._asked_s < OFTEN_S, now_s
            if is_asked_often and self._is_watching(self._changed, now_s):
                with contextlib.suppress(OSError, ProtocolError):
                    return self._ask_watching()
                self._drop()
            reply = InFlightCall(self._link, [self._command()], list).take()[0]
            return as_promoted(0, reply) if isinstance(reply, list) else None

    def _is_watching(self, changed: Callable[[], None], now_s: float) -> bool:
        """Whether there is a connection that watches; opens one if the last attempt was a while ago."""
        if self._connection is not None and self._connection.pid != os.getpid():
            self._drop()
        if self._connection is None and not self._is_refused and now_s - self._tried_s >= RETRY_S:
            self._tried_s = now_s
            with contextlib.suppress(*DRIVER_ERRORS, BrokerError):  # an outage is reported by the call that follows
                self._connection = self._link.dedicated()
                self._connection.send(packed(_TRACKING))
                replies = [self._connection.read() for _ in _TRACKING]
                self._is_refused = any(isinstance(reply, ReplyError) for reply in replies)
                if not self._is_refused:
                    self._reporter = _Reporter(self._connection.fileno(), changed)
                    return True
            self._drop()
        return self._connection is not None

    def _ask_watching(self) -> Promoted | None:
        assert self._connection is not None
        assert self._reporter is not None
        self._reporter.disarm()  # the replies are no report
        self._connection.send(packed([self._command()]))
        while isinstance(reply := self._connection.read(), PushNotification):
            pass  # a report of a change before this call
        self._reporter.arm(is_changed=self._has_message())
        return as_promoted(0, reply, is_watched=True) if isinstance(reply, list) else None

    def _has_message(self) -> bool:
        """Whether a change has been reported after the replies. It may have been read with them."""
        assert self._connection is not None
        try:
            self._connection.read(0.0)
        except TimeoutError:
            return False
        return True

    def _drop(self) -> None:
        reporter, self._reporter = self._reporter, None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if reporter is not None and connection.pid == os.getpid():  # in a fork it is the thread of the parent
            reporter.close()
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._drop()


class _Reporter:
    """A thread that calls `changed` once after each arm(), when something arrives at a descriptor. It reads nothing."""

    def __init__(self, fd: int, changed: Callable[[], None]) -> None:
        self._fd = fd
        self._changed = changed
        self._armed_s = time.monotonic()
        self._is_closed = False
        self._closing = threading.Lock()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._epoll.register(fd, 0)
        # A daemon: it must not keep the process from ending.
        threading.Thread(target=self._run, name="due-watch", daemon=True).start()

    def arm(self, *, is_changed: bool) -> None:
        self._armed_s = time.monotonic()
        if is_changed:
            os.eventfd_write(self._wake_fd, 1)
        else:
            self._epoll.modify(self._fd, select.EPOLLIN | select.EPOLLONESHOT)

    def disarm(self) -> None:
        self._epoll.modify(self._fd, 0)

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            with contextlib.suppress(OSError):  # a connection that failed may be closed, and so is not registered
                self._epoll.unregister(self._fd)
            os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        while True:
            self._epoll.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            if not self._is_closed and (calm_s := self._armed_s + CALM_S - time.monotonic()) > 0:
                time.sleep(calm_s)
            self._changed()
            if self._is_closed:
                break
        with self._closing:  # the end of the connection may wake this thread while close() still uses these
            self._epoll.close()
            os.close(self._wake_fd)


def as_promoted(count: int, times: Sequence[Any], *, is_watched: bool = False) -> Promoted:
    """`times` as lua/next_due.lua and lua/promote.lua return them; a score is empty if nothing waits."""
    due, now_ms, fire, cancels, look = times
    due_ms, fire_ms, look_ms = (round(float(score)) if score else None for score in (due, fire, look))
    return Promoted(count, due_ms, int(now_ms), fire_ms, is_watched, int(cancels), look_ms)
