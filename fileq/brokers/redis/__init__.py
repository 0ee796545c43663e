"""The broker for many machines, on Redis 7.0 and later or Valkey 7.2 and later. Only this package imports redis."""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.redis.broker import RedisBroker
from fileq.config import Config

__all__ = ["RedisBroker", "open_redis"]


def open_redis(
    config: Config,
    *,
    role: str = "",
    clock: Callable[[], int] | None = None,
    answered: Callable[[], None] = lambda: None,
) -> RedisBroker:
    """A connected broker; BrokerUnavailable otherwise. The server gets each script when it is first used.

    `answered` is called at the server's first reply, before more connections are opened."""
    broker = RedisBroker(config, role=role, clock=clock)
    try:
        broker.connect(answered)
    except BaseException:
        broker.close()
        raise
    return broker
