"""The broker on Redis: one store, and the groups of the protocol over it.

Owns the store's life, from the first connection to close(). After a kill -9 the server closes the connections; leases
run out and the reaper of another worker gives the jobs back.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.redis.batches import RedisBatches
from fileq.brokers.redis.catalog import RedisCatalog
from fileq.brokers.redis.file_orders import RedisFileOrders
from fileq.brokers.redis.inspector import RedisInspector
from fileq.brokers.redis.producers import RedisProducers
from fileq.brokers.redis.queues import RedisQueues
from fileq.brokers.redis.repairer import RedisRepairer
from fileq.brokers.redis.schedules import RedisSchedules
from fileq.brokers.redis.store import RedisStore
from fileq.config import Config
from fileq.core.finding import Finding


class RedisBroker(
    RedisQueues,
    RedisInspector,
    RedisRepairer,
    RedisProducers,
    RedisFileOrders,
    RedisCatalog,
    RedisSchedules,
    RedisBatches,
):
    """All broker protocols on Redis 7.0 and later, or Valkey 7.2 and later. Thread-safe."""

    kind = "redis"

    def __init__(self, config: Config, *, clock: Callable[[], int] | None = None) -> None:
        self._store = RedisStore(config, clock=clock)
        self.where = self._store.link.where

    def connect(self, answered: Callable[[], None] = lambda: None) -> None:
        """Reach the server; `answered` is called at its first reply, before more connections are opened."""
        self._store.connect(answered)

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Whether the server is fit to keep jobs; `permissions` also tries those of this user. Changes nothing."""
        from fileq.brokers.redis.examine import examine, examine_permissions

        return [*examine(self._store), *([examine_permissions(self._store)] if permissions else [])]

    def close(self) -> None:
        self._store.close()
