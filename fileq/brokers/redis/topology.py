"""Which server to connect to: a plain one, a socket, the master that Sentinel names, or a node of a cluster.

Owns the connection pool and the settings of its connections. Sends no command of fileq's.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from fileq.brokers.redis.keys import Keys
from fileq.config import Config, PasswordFile
from fileq.core.errors import ConfigError

SENTINEL_PORT, REDIS_PORT = 26379, 6379


class Topology:
    """The pool of the server that serves fileq's keys. Call refresh() when another server may have taken over."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.where = config.redis.location
        self._options = self._connection_options()
        url = urlsplit(config.redis.url)
        self._scheme = url.scheme
        self._cluster: RedisCluster | None = None
        self._pool: ConnectionPool
        keys = Keys(config)
        self._key = keys.workers
        if url.scheme == "redis+cluster":
            keys.check_hash_slot()
            self._nodes = [ClusterNode(host, port) for host, port in _hosts(url.netloc, REDIS_PORT)]
        elif url.scheme == "redis+sentinel":
            self._pool = self._sentinel_pool(url.netloc, url.path)
        else:
            self._pool = self._plain_pool()

    def pool(self) -> ConnectionPool:
        if self._scheme != "redis+cluster":
            return self._pool
        cluster = self._cluster or self._open_cluster()
        node = cluster.get_node_from_key(self._key)
        if node is None or node.redis_connection is None:
            self.refresh()
            node = (self._cluster or self._open_cluster()).get_node_from_key(self._key)
        assert node is not None
        return cluster.get_redis_connection(node).connection_pool

    def refresh(self) -> None:
        """Read the cluster's layout again at the next call. Sentinel needs no refresh: every connect queries it."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def lone_connection(self) -> AbstractConnection:
        """A connection like those of the pool, but outside it."""
        pool = self.pool()
        connection: AbstractConnection = pool.connection_class(**pool.connection_kwargs)
        return connection

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if self._scheme != "redis+cluster":
            self._pool.disconnect()

    def _connection_options(self) -> dict[str, Any]:
        redis = self._config.redis
        url = urlsplit(redis.url)
        sentinel_db = url.path.rpartition("/")[2] if url.scheme == "redis+sentinel" else url.path.strip("/")
        options: dict[str, Any] = {
            "db": redis.db or (int(sentinel_db) if sentinel_db.isdigit() and url.scheme != "unix" else 0),
            "username": redis.username or unquote(_credentials(url.netloc)[0]) or None,
            "password": redis.password or unquote(_credentials(url.netloc)[1]) or None,
            "socket_connect_timeout": redis.dial_timeout,
            "socket_timeout": max(redis.read_timeout, redis.write_timeout),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,
        }
        if options["password"] is None:
            options["username"] = None  # the library would send AUTH without a password
        if redis.password_file:
            username = options.pop("username")
            file = PasswordFile(redis.password_file, options.pop("password"))
            options["credential_provider"] = _CredentialsFromFile(username, file)
        if redis.tls.enabled or url.scheme == "rediss":
            # TLS 1.3 sends session tickets on its own, and the pool mistakes them for an unread reply. The library's
            # greeting, which is off otherwise, waits for a reply and so reads the tickets too.
            del options["driver_info"]
            options |= {
                "ssl_ca_certs": redis.tls.ca_file or None,
                "ssl_certfile": redis.tls.cert_file or None,
                "ssl_keyfile": redis.tls.key_file or None,
            }
        return options

    @property
    def _is_encrypted(self) -> bool:
        return "ssl_ca_certs" in self._options

    def _pool_size(self) -> int:
        return self._config.redis.pool_size_multiplier * (os.cpu_count() or 1)

    def _plain_pool(self) -> ConnectionPool:
        url = urlsplit(self._config.redis.url)
        if url.scheme == "unix":
            options = {k: v for k, v in self._options.items() if not k.startswith("ssl_")}
            options["db"] = self._config.redis.db or int(dict(parse_qsl(url.query)).get("db", 0))
            path = unquote(url.path)
            return ConnectionPool(UnixDomainSocketConnection, max_connections=self._pool_size(), path=path, **options)
        host, port = _hosts(url.netloc, REDIS_PORT)[0] if url.netloc else self._config.redis.host_and_port
        connection_class = SSLConnection if self._is_encrypted else Connection
        return ConnectionPool(
            connection_class, max_connections=self._pool_size(), host=host, port=port, **self._options
        )

    def _sentinel_pool(self, netloc: str, path: str) -> SentinelConnectionPool:
        master = path.strip("/").partition("/")[0]
        if not master:
            raise ConfigError("redis.url names no master; write redis+sentinel://host1,host2/MASTER/0")
        timeouts = {k: self._options[k] for k in ("socket_timeout", "socket_connect_timeout", "protocol", "retry")}
        sentinel = Sentinel(_hosts(netloc, SENTINEL_PORT), sentinel_kwargs=timeouts)
        options = {**self._options, "ssl": self._is_encrypted, "max_connections": self._pool_size()}
        return SentinelConnectionPool(master, sentinel, **options)

    def _open_cluster(self) -> RedisCluster:
        options = {k: v for k, v in self._options.items() if k != "db"}
        self._cluster = RedisCluster(
            startup_nodes=self._nodes,
            ssl=self._is_encrypted,
            max_connections=self._pool_size(),
            **options,
        )
        return self._cluster


class _CredentialsFromFile(CredentialProvider):
    """Called for each new connection: a password that was rotated is used as soon as the server refuses the old one and
    the broker connects again."""

    def __init__(self, username: str | None, file: PasswordFile) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._file.current()
        return (self._username, password) if self._username else (password,)


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
