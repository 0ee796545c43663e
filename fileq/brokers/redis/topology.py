"""Which server to connect to: a plain one, a socket, the master that Sentinel names, or a node of a cluster.

Owns the address and the options of every connection. Sends no command of fileq's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from fileq.brokers.redis.connection import Address, ConnectionOptions, RedisConnection
from fileq.brokers.redis.keys import Keys
from fileq.config import Config, PasswordFile
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.brokers.redis.discovery import ClusterDiscovery, SentinelDiscovery

SENTINEL_PORT, REDIS_PORT = 26379, 6379


class Topology:
    """The server that holds fileq's keys. Call refresh() when another one may have taken over. Thread-safe."""

    def __init__(self, config: Config) -> None:
        self.where = config.redis.location
        self.pool_size = config.redis.pool_size_multiplier * (os.cpu_count() or 1)
        self._options = _connection_options(config)
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
