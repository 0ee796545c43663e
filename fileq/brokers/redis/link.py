"""The connections to one Redis server. Owns those that are open, and lends each to one call at a time.

Connections are never repaired and calls never repeated here: only the caller knows which call may be. A connection with
replies still to come is never given to another call.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

from fileq.brokers.redis.connection import RedisConnection, ReplyError
from fileq.brokers.redis.faults import translate, translated
from fileq.brokers.redis.topology import Topology
from fileq.config import Config

HOT_S = 0.25


class Link:
    """One server, or one hash slot of a cluster, and the connections to it. Thread-safe."""

    def __init__(self, config: Config) -> None:
        self.topology = Topology(config)
        self.where = self.topology.where
        self.max_retries = config.redis.max_retries
        self._pid = os.getpid()
        self._open: set[RedisConnection] = set()  # all connections of the pool, lent or idle
        self._idle: deque[tuple[RedisConnection, float]] = deque()  # and when each was used last
        self._cooled_s = 0.0
        self._wait_s = max(config.redis.read_timeout, config.redis.write_timeout)
        self._freed = threading.Condition()
        self._waiting = 0  # callers that wait for a connection

    def warm(self, count: int) -> None:
        """Open this many connections, or as many as there may be, so that the first calls need not."""
        with translated(self.where):
            opened: list[RedisConnection] = []
            try:
                opened.extend(self.connection() for _ in range(min(count, self.topology.pool_size)))
            finally:
                for connection in opened:
                    self.give_back(connection)

    def checked(self, reply: Any, command: str = "a command") -> Any:
        """The reply; an error reply is raised as one of fileq's errors."""
        if isinstance(reply, ReplyError):
            raise translate(reply, self.where, command) from reply
        return reply

    def dedicated(self) -> RedisConnection:
        """A connection outside the pool, for calls that block."""
        with translated(self.where):
            return self.topology.connect()

    def connection(self) -> RedisConnection:
        """A connection for one call. It is tested first, unless it was used a moment ago.

        If all are in use, waits for one as long as for a reply, then raises ConnectionError."""
        if self._pid != os.getpid():  # after a fork: these are the connections of the parent
            self._pid, self._open, self._idle = os.getpid(), set(), deque()
            self._freed, self._waiting = threading.Condition(), 0
        until_s = 0.0
        while True:
            if (connection := self._idle_or_new()) is not None:
                return connection
            until_s = until_s or time.monotonic() + self._wait_s
            if not self._wait_for_one(until_s):
                raise ConnectionError(f"all {self.topology.pool_size} connections to it are in use")

    def _idle_or_new(self) -> RedisConnection | None:
        while self._idle:
            try:
                connection, used_s = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            is_hot = used_s > self._cooled_s and time.monotonic() - used_s < HOT_S
            # Sentinel may have named another master since, or the cluster another node.
            if self.topology.is_current(connection) and (is_hot or connection.is_quiet()):
                return connection
            self.discard(connection)
        if len(self._open) >= self.topology.pool_size:
            return None
        connection = self.topology.connect()
        self._open.add(connection)
        return connection

    def _wait_for_one(self, until_s: float) -> bool:
        """Wait until a connection is free; False if none is at this time."""
        with self._freed:
            self._waiting += 1  # before the check: a thread that frees a connection after it knows of this caller
            try:
                while not self._idle and len(self._open) >= self.topology.pool_size:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0 or not self._freed.wait(left_s):
                        return False
            finally:
                self._waiting -= 1
        return True

    def _note_freed(self) -> None:
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def give_back(self, connection: RedisConnection) -> None:
        """All replies were read: the connection may serve another call."""
        self._idle.append((connection, time.monotonic()))
        self._note_freed()

    def discard(self, connection: RedisConnection) -> None:
        """Replies may still come: close it, so that no other call reads them."""
        self._open.discard(connection)
        connection.close()
        self._note_freed()

    def check_master(self, reply: ReplyError) -> None:
        """ConnectionError if the server says that it is no longer the master that Sentinel named."""
        if self.topology.is_sentinel and reply.code == "READONLY":
            self.topology.refresh()
            raise ConnectionError(str(reply))

    def cool(self) -> None:
        """Test every idle connection before its next use: one was broken, so others may be."""
        self._cooled_s = time.monotonic()

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
        self.topology.close()
