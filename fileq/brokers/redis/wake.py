"""Waking and listening on Redis: one blocked connection a queue, and none that polls.

`BLMOVE q q RIGHT RIGHT` takes the element at the front and puts it back where it was: it blocks until the queue
holds something, whoever pushed it, and moves nothing. Only the claim script claims.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from typing import Any

from redis import exceptions
from redis.connection import AbstractConnection

from fileq.brokers.redis.link import Link, translate
from fileq.brokers.redis.names import Names
from fileq.core.errors import BrokerUnavailable

OVERDUE_S = 3.0  # beyond the limit of a wait
FULL_PAUSE_S = 0.02  # while memory is full Redis refuses the wait: look this often instead
_BROKEN = (exceptions.ConnectionError, exceptions.InvalidResponse, OSError)


def _read(connection: AbstractConnection, timeout_s: float) -> Any:
    """What has come or comes within this time; TimeoutError, and the connection still good, if not all of it did."""
    return connection.read_response(disable_decoding=True, timeout=timeout_s, disconnect_on_error=False)


class RedisWaiter:
    """The blocked connections of one pump, behind one descriptor: an epoll that is itself watched."""

    def __init__(self, link: Link, names: Names, longest_s: float) -> None:
        self._link = link
        self._queues = dict(zip(names.queue_names, names.queues, strict=True))
        self._longest_s = longest_s
        self._epoll = select.epoll()
        self._connections: dict[str, AbstractConnection] = {}
        self._fds: dict[int, str] = {}
        self._asked: dict[str, float] = {}  # queues whose connection has a wait under way, and since when
        self._paused: frozenset[str] = frozenset()
        self._is_full = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def arm(self, paused: frozenset[str] = frozenset()) -> float:
        """Raises BrokerUnavailable like any other call."""
        self._paused = paused
        self._collect()
        for queue in self._queues:
            if queue in paused or self._is_overdue(queue):
                self._drop(queue)
        if self._is_full:
            return FULL_PAUSE_S  # asked again only after it, or the refusals would wake us without a pause
        for queue, key in self._queues.items():
            if queue not in paused and queue not in self._asked:
                self._ask(queue, key)
        return self._longest_s

    def wait(self, timeout_s: float) -> bool:
        """A wait that ran into its own time limit on the server is no work: it is asked again."""
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            left = max(0.0, deadline - time.monotonic())
            was_full = self._is_full
            if self._epoll.poll(min(left, FULL_PAUSE_S) if was_full else left) and self._collect():
                return True
            if left == 0.0:
                return False
            if was_full:
                return True  # nobody tells us now: go and look
            self.arm(self._paused)

    def _ask(self, queue: str, key: str) -> None:
        try:
            connection = self._connections.get(queue) or self._connect(queue)
            connection.send_command("BLMOVE", key, key, "RIGHT", "RIGHT", self._longest_s, check_health=False)
        except (exceptions.RedisError, OSError) as error:
            self._drop(queue)
            raise translate(error, self._link.where) from error
        self._asked[queue] = time.monotonic()

    def _is_overdue(self, queue: str) -> bool:
        """The server ends each wait by itself. An answer this late will never come: something between us forgot the
        connection and told nobody, and a waiter that trusts it would sleep through every job."""
        return time.monotonic() > self._asked.get(queue, math.inf) + self._longest_s + OVERDUE_S

    def _connect(self, queue: str) -> AbstractConnection:
        connection = self._connections[queue] = self._link.dedicated()
        fd = connection._sock.fileno()  # type: ignore[attr-defined]
        self._fds[fd] = queue
        self._epoll.register(fd, select.EPOLLIN)
        return connection

    def _collect(self) -> bool:
        """Read every answer that has come; True if one of them says that there may be work."""
        is_work = False
        self._is_full = False
        for fd, _ in self._epoll.poll(0):
            queue = self._fds[fd]
            try:
                is_work |= _read(self._connections[queue], 0.0) is not None
                self._asked.pop(queue, None)
            except exceptions.TimeoutError:
                pass  # readable, but no answer: half of one, or something of TLS's own
            except exceptions.OutOfMemoryError:
                self._asked.pop(queue, None)
                self._is_full = True
            except _BROKEN:
                self._drop(queue)
                is_work = True  # the turn that follows meets the outage, or finds what came meanwhile
            except exceptions.ResponseError as error:
                self._drop(queue)
                refusal = translate(error, self._link.where, f"BLMOVE {self._queues[queue]}")
                if not isinstance(refusal, BrokerUnavailable):
                    raise refusal from error  # a turn may not meet it: without this, a wait that ends at once, for ever
                # Unblocked, read-only, loading: the turn that follows is told the same, and deals with it.
                is_work = True
        return is_work

    def _drop(self, queue: str) -> None:
        self._asked.pop(queue, None)
        connection = self._connections.pop(queue, None)
        if connection is None:
            return
        for fd in [fd for fd, name in self._fds.items() if name == queue]:
            del self._fds[fd]
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)
        connection.disconnect()

    def close(self) -> None:
        for queue in list(self._connections):
            self._drop(queue)
        self._epoll.close()


class RedisSubscription:
    """The events channel, on a connection of its own."""

    def __init__(self, link: Link, channel: str) -> None:
        self._where = link.where
        self._connection = link.dedicated()
        try:
            self._connection.send_command("SUBSCRIBE", channel, check_health=False)
            self._connection.read_response()
        except (exceptions.RedisError, OSError) as error:
            self._connection.disconnect()
            raise translate(error, self._where, f"SUBSCRIBE {channel}") from error

    def get(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                message = _read(self._connection, max(0.0, deadline - time.monotonic()))
                if isinstance(message, list) and message[0] == b"message":
                    return bytes(message[2])
        except exceptions.TimeoutError:
            return None
        except (exceptions.RedisError, OSError) as error:
            raise translate(error, self._where) from error

    def close(self) -> None:
        self._connection.disconnect()
