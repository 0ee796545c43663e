"""Where the server is, if Sentinel or a cluster decides that. Only this module imports redis-py.

It takes 100 ms to import, so store.py imports this module only for these two. Nothing of fileq's is sent here.
Every error leaves as an OSError or, if the server refused, as a ReplyError.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from fileq.brokers.redis.store import ConnectionOptions, ReplyError

_OBJECTS = re.compile(r" : <redis[.].*", re.DOTALL)  # the library's list of Sentinel objects that know no master


class SentinelDiscovery:
    """The address of the master, as the Sentinels know it now."""

    def __init__(self, sentinels: Sequence[tuple[str, int]], master: str, options: ConnectionOptions) -> None:
        self._sentinel = Sentinel(sentinels, sentinel_kwargs=_common_options(options))
        self._master = master

    def address(self) -> tuple[str, int]:
        with _errors():
            host, port = self._sentinel.discover_master(self._master)
        return str(host), int(port)

    def close(self) -> None:
        for client in self._sentinel.sentinels:
            client.close()


class ClusterDiscovery:
    """The address of the node that serves `key`, as the cluster's layout is now."""

    def __init__(self, nodes: Sequence[tuple[str, int]], key: str, options: ConnectionOptions) -> None:
        self._nodes = nodes
        self._key = key
        self._options = _common_options(options)
        if options.credentials():
            self._options["credential_provider"] = _Credentials(options.credentials)
        if options.tls is not None:
            self._options |= {
                "ssl": True,
                "ssl_ca_certs": options.tls.ca_file or None,
                "ssl_certfile": options.tls.cert_file or None,
                "ssl_keyfile": options.tls.key_file or None,
            }

    def address(self) -> tuple[str, int]:
        with _errors():
            nodes = [ClusterNode(host, port) for host, port in self._nodes]
            cluster = RedisCluster(startup_nodes=nodes, **self._options)
            try:
                node = cluster.get_node_from_key(self._key)
            finally:
                cluster.close()
        if node is None:
            raise ConnectionError("CLUSTERDOWN no node serves the hash slot of the keys")
        return str(node.host), int(node.port)

    def close(self) -> None:
        """Nothing stays open between two calls."""


class _Credentials(CredentialProvider):
    def __init__(self, credentials: Callable[[], tuple[str, ...]]) -> None:
        self._credentials = credentials

    def get_credentials(self) -> Any:
        return self._credentials()


def _common_options(options: ConnectionOptions) -> dict[str, Any]:
    return {
        "socket_connect_timeout": options.dial_timeout_s,
        "socket_timeout": options.timeout_s,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """The library's errors without its types."""
    try:
        yield
    except exceptions.NoPermissionError as error:
        raise ReplyError(f"NOPERM {error}") from error
    except exceptions.TimeoutError as error:
        raise TimeoutError(str(error)) from error
    except (exceptions.ConnectionError, exceptions.RedisClusterException, exceptions.InvalidResponse) as error:
        raise ConnectionError(_OBJECTS.sub("; no Sentinel knows it", str(error))) from error
    except exceptions.RedisError as error:
        raise ReplyError(str(error)) from error
