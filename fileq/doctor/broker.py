"""Is the broker there, and fit to keep jobs. Never makes a database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fileq.brokers import examine
from fileq.brokers.base import FullBroker
from fileq.config import Loaded, describe_broker_choice
from fileq.errors import BrokerError, ConfigError
from fileq.finding import Finding, sound, unknown, wrong


def check_broker(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    config = loaded.config
    choice = describe_broker_choice(loaded)
    if config.broker_kind == "memory":
        yield sound("broker", f"{choice}; it forgets everything when its process ends")
        return
    if config.broker_kind == "sqlite" and not os.path.exists(config.sqlite.path):
        from fileq.brokers.sqlite.examine import examine_place

        yield unknown("broker", f"{choice}; there is no database yet", "the first start makes one")
        yield from examine_place(config.sqlite.path)
        return
    try:
        broker = open_it()
        findings = examine(broker, rights=True)
    except (BrokerError, ConfigError) as error:
        yield wrong("broker", str(error), _advice(config.broker_kind, str(error), choice))
        return
    yield sound("broker", choice)
    yield from findings


def _advice(kind: str, error: str, choice: str) -> str:
    if kind == "sqlite":
        return ""  # the error says it all
    is_refused = any(word in error for word in ("NOAUTH", "WRONGPASS", "username-password"))
    what = "check redis.username and redis.password" if is_refused else "see that it runs and can be reached"
    return f"{what}: {choice}"
