"""Waiting for jobs and for events on Redis: one blocked connection per queue, and no polling.

`BLMOVE q q RIGHT RIGHT` takes the element at the front of a list and puts it back in the same position. So it
blocks until the queue holds something, and moves nothing. Only the claim script claims.

Its reply is that element, which is not needed. A long one is not received: the connection is closed and opened
again.
"""

from __future__ import annotations

import contextlib
import math
import re
import select
import time

from hiredis import ProtocolError

from fileq.brokers.redis.connection import DRIVER_ERRORS, RedisConnection, ReplyError, packed, translate
from fileq.brokers.redis.keys import Keys
from fileq.brokers.redis.link import Link
from fileq.core.errors import BrokerUnavailable

OVERDUE_S = 3.0  # a reply that is later than its time limit by this much is lost
FULL_PAUSE_S = 0.02  # Redis refuses BLMOVE while its memory is full: the pump claims this often instead
LONG_REPLY_BYTES = 1 << 16  # a new connection costs less than to receive this much
_LENGTH = re.compile(rb"\$(\d+)\r\n")


def _is_long(connection: RedisConnection) -> bool:
    """Whether a long reply has begun to arrive. Reads nothing. Always False with TLS."""
    length = _LENGTH.match(connection.peek(24))
    return length is not None and int(length[1]) > LONG_REPLY_BYTES


class RedisWaiter:
    """The blocked connections of one pump behind one descriptor, which is an epoll."""

    def __init__(self, link: Link, keys: Keys, longest_s: float) -> None:
        self._link = link
        self._queues = dict(zip(keys.queue_names, keys.queues, strict=True))
        self._longest_s = longest_s
        self._epoll = select.epoll()
        self._connections: dict[str, RedisConnection] = {}
        self._fds: dict[int, str] = {}
        self._sent_s: dict[str, float] = {}  # queues with a BLMOVE in flight, and when it was sent
        self._paused: frozenset[str] = frozenset()
        self._is_full = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def arm(self, paused: frozenset[str] = frozenset()) -> float:
        """Send a BLMOVE for every queue that has none in flight. BrokerUnavailable if that fails."""
        self._paused = paused
        self._collect()
        for queue in self._queues:
            if queue in paused or self._is_overdue(queue):
                self._drop(queue)
        if self._is_full:
            return FULL_PAUSE_S  # sent again only after it, or each refusal would wake the pump at once
        for queue, key in self._queues.items():
            if queue not in paused and queue not in self._sent_s:
                self._send(queue, key)
        return self._longest_s

    def wait(self, timeout_s: float) -> bool:
        """A BLMOVE that reached its time limit on the server is no sign of work: it is sent again."""
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            left = max(0.0, deadline - time.monotonic())
            was_full = self._is_full
            if self._epoll.poll(min(left, FULL_PAUSE_S) if was_full else left) and self._collect():
                return True
            if left == 0.0:
                return False
            if was_full:
                return True  # no BLMOVE is in flight: only a claim can find out
            self.arm(self._paused)

    def _send(self, queue: str, key: str) -> None:
        try:
            connection = self._connections.get(queue) or self._connect(queue)
            connection.send(packed([("BLMOVE", key, key, "RIGHT", "RIGHT", self._longest_s)]))
        except DRIVER_ERRORS as error:
            self._drop(queue)
            raise translate(error, self._link.where) from error
        self._sent_s[queue] = time.monotonic()

    def _is_overdue(self, queue: str) -> bool:
        """The server ends each BLMOVE itself. A reply this late never comes: a router or firewall lost the connection
        without a reset, and the waiter would miss every job."""
        return time.monotonic() > self._sent_s.get(queue, math.inf) + self._longest_s + OVERDUE_S

    def _connect(self, queue: str) -> RedisConnection:
        connection = self._connections[queue] = self._link.dedicated()
        fd = connection.fileno()
        self._fds[fd] = queue
        self._epoll.register(fd, select.EPOLLIN)
        return connection

    def _collect(self) -> bool:
        """Read every reply that has arrived; True if one of them says that there may be work."""
        is_work = False
        self._is_full = False
        for fd, _ in self._epoll.poll(0):
            queue = self._fds[fd]
            if _is_long(self._connections[queue]):
                self._drop(queue)
                is_work = True
                continue
            try:
                is_work |= self._read(queue)
            except TimeoutError:
                pass  # readable, but no complete reply: a part of one, or data of the TLS layer
            except (OSError, ProtocolError):
                self._drop(queue)
                is_work = True  # the claim that follows meets the outage, or finds jobs that came meanwhile
        return is_work

    def _read(self, queue: str) -> bool:
        """Reads the reply to one BLMOVE; True if it says that there may be work."""
        reply = self._connections[queue].read(0.0)
        if not isinstance(reply, ReplyError):
            del self._sent_s[queue]
            return reply is not None
        if reply.code == "OOM":
            del self._sent_s[queue]
            self._is_full = True
            return False
        self._drop(queue)
        refusal = translate(reply, self._link.where, f"BLMOVE {self._queues[queue]}")
        if not isinstance(refusal, BrokerUnavailable):
            raise refusal from reply  # claims may not hit this error, and then every wait would end at once
        # Unblocked, read-only: the claim that follows gets the same reply and handles it.
        return True

    def _drop(self, queue: str) -> None:
        self._sent_s.pop(queue, None)
        connection = self._connections.pop(queue, None)
        if connection is None:
            return
        for fd in [fd for fd, name in self._fds.items() if name == queue]:
            del self._fds[fd]
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)
        connection.close()

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
            self._connection.send(packed([("SUBSCRIBE", channel)]))
            link.checked(self._connection.read(), f"SUBSCRIBE {channel}")
        except DRIVER_ERRORS as error:
            self._connection.close()
            raise translate(error, self._where) from error
        except BaseException:
            self._connection.close()
            raise

    def get(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                message = self._connection.read(max(0.0, deadline - time.monotonic()))
                if isinstance(message, list) and message[0] == b"message":
                    return bytes(message[2])
        except TimeoutError:
            return None
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    def close(self) -> None:
        self._connection.close()
