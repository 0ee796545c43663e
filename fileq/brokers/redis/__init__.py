"""The broker on Redis 7.0 and later, or Valkey 7.2 and later: for many machines. Only this package imports redis."""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.redis.broker import RedisBroker
from fileq.config import Config

__all__ = ["RedisBroker", "open_redis"]


def open_redis(
    config: Config, *, clock: Callable[[], int] | None = None, answered: Callable[[], None] = lambda: None
) -> RedisBroker:
    """Connected, its scripts loaded, its first connections open; BrokerUnavailable otherwise.

    `answered` is told of the server's first answer, before the scripts go to it."""
    broker = RedisBroker(config, clock=clock)
    try:
        # Something short first: to a call of many arguments, or long ones, a server that wants a password says
        # "Protocol error" in place of NOAUTH.
        broker.link.call("EXISTS", broker.names.workers)
        answered()
        broker.scripts.load()
        broker.link.warm(config.redis.min_idle_conns)
    except BaseException:
        broker.close()
        raise
    return broker
