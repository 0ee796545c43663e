"""Checks that the broker is reachable and safe for jobs. Must never create or migrate a database."""

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
        yield sound("broker", f"{choice}; all jobs are lost when its process ends")
        return
    if config.broker_kind == "sqlite" and (findings := _without_opening(config.sqlite.path, choice)):
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


def _without_opening(path: str, choice: str) -> list[Finding]:
    """Findings about a database that opening would change; empty for any other.

    Opening creates a missing database. It migrates one of an older fileq, which may still be running."""
    from fileq.brokers.sqlite.examine import examine_location, older_schema

    if not os.path.exists(path):
        found = [unknown("broker", f"{choice}; there is no database yet", "the first start creates it")]
    elif version := older_schema(path):
        advice = "the next start makes a backup and migrates it"
        found = [sound("broker", choice), unknown("schema", f"version {version}, from an older fileq", advice)]
    else:
        return []
    return [*found, *examine_location(path)]


def _advice(kind: str, error: str, choice: str) -> str:
    if kind == "sqlite":
        return ""  # the error names the next step
    is_refused = any(word in error for word in ("NOAUTH", "WRONGPASS", "username-password"))
    what = "check redis.username and redis.password" if is_refused else "check that it is running and reachable"
    return f"{what}: {choice}"
