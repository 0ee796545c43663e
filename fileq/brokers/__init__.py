"""open_broker(config): the one door to every broker. Which broker it is, only this module decides.

Brokers of other people register under the entry point group `fileq.brokers`: a callable that takes the
Config and returns an object with the methods of base.FullBroker.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import ConfigError

ENTRY_POINT_GROUP = "fileq.brokers"
BUILT_IN = ("redis", "sqlite", "memory")


def open_broker(config: Config, *, create: bool = True, answered: Callable[[], None] = lambda: None) -> FullBroker:
    """The broker this configuration names, opened and reachable, or BrokerUnavailable.

    `create=False` never makes a database where there is none: looking must not leave traces. `answered` is told when
    a server has shown that it is there, and more is to be done before it can be used."""
    kind = config.broker_kind
    if kind == "redis":
        from fileq.brokers.redis import open_redis

        return open_redis(config, answered=answered)
    if kind == "sqlite":
        from fileq.brokers.sqlite import open_sqlite

        return open_sqlite(config, create=create)
    if kind == "memory":
        from fileq.brokers.memory import MemoryBroker

        return MemoryBroker(config)
    return _third_party(kind, config)


def _third_party(kind: str, config: Config) -> FullBroker:
    from importlib.metadata import entry_points  # reads every installed package; nobody else needs it

    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if kind not in found:
        known = ", ".join((*BUILT_IN, *sorted(found)))
        raise ConfigError(f"broker is {kind!r}; this installation has {known}")
    broker: FullBroker = found[kind].load()(config)
    return broker
