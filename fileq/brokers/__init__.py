"""open_broker(config) opens every broker. Only this module decides which one.

A broker of another package registers under the entry point group `fileq.brokers`. Its entry point is a callable that
takes the Config and returns an object with the methods of protocol.FullBroker.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import ConfigError

ENTRY_POINT_GROUP = "fileq.brokers"
BUILT_IN = ("redis", "sqlite", "memory")


def open_broker(
    config: Config, *, role: str = "", create: bool = True, answered: Callable[[], None] = lambda: None
) -> FullBroker:
    """The broker of this configuration, opened and reachable. Raises BrokerUnavailable otherwise.

    `role` is that of a long-running process: its connections to a server bear it in their name, and a worker has few of
    them. `create=False` creates no database where there is none: a command that only reads must leave no trace.
    `answered` is called when a server has answered and the broker still has to prepare before it can be used."""
    kind = config.broker_kind
    if kind == "redis":
        from fileq.brokers.redis import open_redis

        return open_redis(config, role=role, answered=answered)
    if kind == "sqlite":
        from fileq.brokers.sqlite import SqliteBroker

        return SqliteBroker(config, create=create)
    if kind == "memory":
        from fileq.brokers.memory import MemoryBroker

        return MemoryBroker(config)
    return _open_third_party(kind, config)


def _open_third_party(kind: str, config: Config) -> FullBroker:
    from importlib.metadata import entry_points  # slow: reads the metadata of every installed package

    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if kind not in found:
        known = ", ".join((*BUILT_IN, *sorted(found)))
        raise ConfigError(f"broker is {kind!r}; this installation has {known}")
    broker: FullBroker = found[kind].load()(config)
    return broker
