"""The connections to one Redis server. Owns the pool and the connections that were used a moment ago.

The client library connects, authenticates and parses. Its pipelines and its retries are not used: only fileq knows
which call may be repeated. A connection with replies still to come is never given to another call.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import Any

from redis.connection import AbstractConnection, Connection, ConnectionPool

from fileq.brokers.redis.faults import translate, translated
from fileq.brokers.redis.topology import Topology
from fileq.config import Config

HOT_S, HOT_MAX = 0.25, 4


class Link:
    """One server, or one hash slot of a cluster, and the connections to it. Thread-safe."""

    def __init__(self, config: Config) -> None:
        self.topology = Topology(config)
        self.where = self.topology.where
        self.max_retries = config.redis.max_retries
        self._hot: deque[tuple[ConnectionPool, Connection, float]] = deque()

    def warm(self, count: int) -> None:
        """Open this many connections, so that the first calls need not."""
        with translated(self.where):
            pool = self.topology.pool()
            opened: list[Connection] = []
            try:
                opened.extend(pool.get_connection() for _ in range(count))
            finally:
                for connection in opened:
                    pool.release(connection)

    def checked(self, reply: Any, command: str = "") -> Any:
        """The reply; an error reply is raised as one of fileq's errors."""
        if isinstance(reply, Exception):
            raise translate(reply, self.where, command) from reply
        return reply

    def dedicated(self) -> AbstractConnection:
        """A connected connection outside the pool, for calls that block."""
        with translated(self.where):
            connection = self.topology.lone_connection()
            connection.connect()
            return connection

    def connection(self) -> tuple[ConnectionPool, Connection]:
        """A connection and its pool, for one call. The pool tests each connection before it hands it out; one that was
        used a moment ago skips that test."""
        pool = self.topology.pool()
        with contextlib.suppress(IndexError):
            from_pool, connection, used_s = self._hot.pop()
            # Sentinel may have named another master since, and a fork inherits the connections of its parent.
            is_owned = connection.pid == os.getpid() and pool.owns_connection(connection)
            if from_pool is pool and is_owned and time.monotonic() - used_s < HOT_S:
                return pool, connection
            from_pool.release(connection)
        return pool, pool.get_connection()

    def give_back(self, pool: ConnectionPool, connection: Connection) -> None:
        """All replies were read: the connection may serve another call."""
        if len(self._hot) < HOT_MAX:
            self._hot.append((pool, connection, time.monotonic()))
        else:
            pool.release(connection)

    def discard(self, pool: ConnectionPool, connection: Connection) -> None:
        """Replies may still come: disconnect, so that no other call reads them."""
        connection.disconnect()
        pool.release(connection)

    def cool(self) -> None:
        """Return the recently used connections to the pool, which tests them: one was broken, so others may be."""
        with contextlib.suppress(IndexError):
            while True:
                pool, connection, _ = self._hot.pop()
                pool.release(connection)

    def close(self) -> None:
        self.topology.close()
