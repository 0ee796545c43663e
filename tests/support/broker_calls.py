"""The shape of a call to a broker on Redis, with a scene for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fileq.brokers.redis import RedisBroker
from tests.support.redis_store import Store

Invocation = Callable[[RedisBroker], Any]


class BrokerCall(NamedTuple):
    """`prepare` sets the scene and returns the call; `again` maps the reply of the call to the reply of its repeat."""

    name: str
    prepare: Callable[[Store], Invocation]
    again: Callable[[Any], Any] = lambda answer: answer
