"""Is the broker there, and fit to keep jobs. Never makes a database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fileq.brokers.protocol import FullBroker
from fileq.config import Loaded, describe_broker_choice
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.finding import Finding, sound, unknown, wrong


def check_broker(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    config = loaded.config
    choice = describe_broker_choice(loaded)
    if config.broker_kind == "memory":
        yield sound("broker", f"{choice}; it forgets everything when its process ends")
        return
    if config.broker_kind == "sqlite" and (findings := _unopened(config.sqlite.path, choice)):
        yield from findings
        return
    try:
        broker = open_it()
        findings = broker.examine(permissions=True)
    except (BrokerError, ConfigError) as error:
        yield wrong("broker", str(error), _advice(config.broker_kind, str(error), choice))
        return
    yield sound("broker", choice)
    yield from findings


def _unopened(path: str, choice: str) -> list[Finding]:
    """Of a database that must not be opened to be looked at: one that is not there would be made, and one of an older
    fileq migrated, perhaps while that one is still running. Empty for any other."""
    from fileq.brokers.sqlite.examine import examine_location, older_schema

    if not os.path.exists(path):
        found = [unknown("broker", f"{choice}; there is no database yet", "the first start makes one")]
    elif version := older_schema(path):
        advice = "the next start migrates it, after a backup"
        found = [sound("broker", choice), unknown("schema", f"version {version}, of an older fileq", advice)]
    else:
        return []
    return [*found, *examine_location(path)]


def _advice(kind: str, error: str, choice: str) -> str:
    if kind == "sqlite":
        return ""  # the error says it all
    is_refused = any(word in error for word in ("NOAUTH", "WRONGPASS", "username-password"))
    what = "check redis.username and redis.password" if is_refused else "see that it runs and can be reached"
    return f"{what}: {choice}"
