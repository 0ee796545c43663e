"""The connections to one Redis server. Owns those that are open, and lends each to one call at a time.

Connections are never repaired and calls never repeated here: only the caller knows which call may be. A connection with
replies still to come is never given to another call.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from fileq.brokers.redis.connection import (
    Address,
    ConnectionOptions,
    RedisConnection,
    ReplyError,
    translate,
    translated,
)
from fileq.brokers.redis.keys import Keys
from fileq.config import Config
from fileq.config.sources import PasswordFile
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.brokers.redis.discovery import ClusterDiscovery, SentinelDiscovery

HOT_S = 0.25
# Of a worker, so that a fleet of a thousand needs four thousand: one waits for jobs, one watches due times, and its
# threads share the others. The pump has one or two in use, and waits for no other thread that waits for it.
WORKER_CONNECTIONS = 4


class Link:
    """One server, or one hash slot of a cluster, and the connections to it. Thread-safe."""

    def __init__(self, config: Config, role: str = "") -> None:
        self.topology = Topology(config, role)
        self.where = self.topology.where
        self.max_retries = config.redis.max_retries
        self._pid = os.getpid()
        self._open: set[RedisConnection] = set()  # all connections of the pool, lent or idle
        self._opening, self._growing = 0, threading.Lock()  # how many are being opened
        self._idle: deque[tuple[RedisConnection, float]] = deque()  # and when each was used last
        self._cooled_s = 0.0
        self._wait_s = max(config.redis.read_timeout, config.redis.write_timeout)
        self._callers: deque[threading.Event] = deque()  # that wait for a connection; the first one is next

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

        If all are in use, waits for its turn as long as for a reply, then raises ConnectionError. Callers get theirs in
        the order in which they ask, so a thread that always needs one keeps it from no other."""
        if self._pid != os.getpid():  # after a fork: these are the connections of the parent
            self._pid, self._open, self._idle, self._callers = os.getpid(), set(), deque(), deque()
            self._opening, self._growing = 0, threading.Lock()
        if not self._callers and (connection := self._idle_or_new()) is not None:
            return connection
        until_s = time.monotonic() + self._wait_s
        is_next = threading.Event()
        self._callers.append(is_next)
        try:
            while True:
                if self._callers[0] is is_next and (connection := self._idle_or_new()) is not None:
                    return connection
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise ConnectionError(f"all {self.topology.pool_size} connections to it are in use")
                is_next.wait(left_s)
                is_next.clear()  # before the next look: what is freed after it sets the event again
        finally:
            self._callers.remove(is_next)
            self._note_freed()

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
        with self._growing:
            if len(self._open) + self._opening >= self.topology.pool_size:
                return None
            self._opening += 1
        try:
            connection = self.topology.connect()
            self._open.add(connection)
            return connection
        finally:
            with self._growing:
                self._opening -= 1

    def _note_freed(self) -> None:
        with contextlib.suppress(IndexError):
            self._callers[0].set()

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


# Which server to connect to: a plain one, a socket, the master that Sentinel names, or a node of a cluster.
#
# Owns the address and the options of every connection. Sends no command of fileq's.


SENTINEL_PORT, REDIS_PORT = 26379, 6379


class Topology:
    """The server that holds fileq's keys. Call refresh() when another one may have taken over. Thread-safe."""

    def __init__(self, config: Config, role: str = "") -> None:
        self.where = config.redis.location
        self.pool_size = config.redis.pool_size_multiplier * (os.cpu_count() or 1)
        if role == "worker":
            self.pool_size = min(self.pool_size, WORKER_CONNECTIONS - 2)
        name = f"fileq:{role}:{socket.gethostname()}-{os.getpid()}" if role else ""
        self._options = _connection_options(config)._replace(name=name)
        self._discovery: SentinelDiscovery | ClusterDiscovery | None = None
        self._address: Address | None = None  # the last one that was found
        url = urlsplit(config.redis.url)
        self.is_sentinel = url.scheme == "redis+sentinel"
        if url.scheme == "redis+cluster":
            self._discovery = self._cluster(Keys(config), url.netloc)
        elif self.is_sentinel:
            self._discovery = self._sentinels(url.netloc, url.path)
        elif url.scheme == "unix":
            self._address = unquote(url.path)
        else:
            self._address = _hosts(url.netloc, REDIS_PORT)[0] if url.netloc else config.redis.host_and_port

    def connect(self) -> RedisConnection:
        """A new connection to the server that holds fileq's keys. OSError, ProtocolError or ReplyError otherwise."""
        address = self._address
        if self._discovery is not None and (address is None or self.is_sentinel):
            address = self._address = self._discovery.address()
        assert address is not None
        return RedisConnection(address, self._options)

    def is_current(self, connection: RedisConnection) -> bool:
        """Whether it leads to the server that was found last."""
        return connection.address == self._address

    def refresh(self) -> None:
        """Look for the server again at the next connect(). Sentinel is queried at every one."""
        if self._discovery is not None:
            self._address = None

    def close(self) -> None:
        if self._discovery is not None:
            self._discovery.close()

    def _sentinels(self, netloc: str, path: str) -> SentinelDiscovery:
        from fileq.brokers.redis.discovery import SentinelDiscovery  # slow: imports redis-py

        master = path.strip("/").partition("/")[0]
        if not master:
            raise ConfigError("redis.url names no master; write redis+sentinel://host1,host2/MASTER/0")
        return SentinelDiscovery(_hosts(netloc, SENTINEL_PORT), master, self._options)

    def _cluster(self, keys: Keys, netloc: str) -> ClusterDiscovery:
        from fileq.brokers.redis.discovery import ClusterDiscovery  # slow: imports redis-py

        keys.check_hash_slot()
        return ClusterDiscovery(_hosts(netloc, REDIS_PORT), keys.workers, self._options)


def _connection_options(config: Config) -> ConnectionOptions:
    redis = config.redis
    url = urlsplit(redis.url)
    user, password = _credentials(url.netloc)
    username, password = redis.username or unquote(user), redis.password or unquote(password)
    options = ConnectionOptions(
        dial_timeout_s=redis.dial_timeout,
        timeout_s=max(redis.read_timeout, redis.write_timeout),
        db=0 if url.scheme == "redis+cluster" else redis.db or _db_of(redis.url),  # a cluster has no other
        tls=redis.tls if redis.tls.enabled or url.scheme == "rediss" else None,
    )
    if redis.password_file:
        # Read for each new connection: a password that was rotated is used as soon as the server refuses the old one
        # and the broker connects again.
        file = PasswordFile(redis.password_file, password)
        return options._replace(credentials=lambda: (username, file.current()) if username else (file.current(),))
    if password:  # a user name alone can't log in
        return options._replace(credentials=lambda: (username, password) if username else (password,))
    return options


def _db_of(text: str) -> int:
    """The database number in redis.url; 0 without one."""
    url = urlsplit(text)
    if url.scheme == "unix":
        return int(dict(parse_qsl(url.query)).get("db", 0))
    number = url.path.rpartition("/")[2] if url.scheme == "redis+sentinel" else url.path.strip("/")
    return int(number) if number.isdigit() else 0


def _credentials(netloc: str) -> tuple[str, str]:
    user, _, password = netloc.rpartition("@")[0].partition(":")
    return user, password


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    """Parses host:port,host:port, with or without credentials before it; IPv6 addresses in brackets."""
    hosts = []
    for part in netloc.rpartition("@")[2].split(","):
        parsed = urlsplit(f"//{part}")
        hosts.append((parsed.hostname or "localhost", parsed.port or default_port))
    return hosts
