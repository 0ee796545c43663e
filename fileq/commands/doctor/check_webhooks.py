"""Checks the definitions of webhooks: those of the configuration and those of the catalog. Sends nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker
from fileq.config import Config, Loaded
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.finding import Finding, sound, wrong
from fileq.webhooks.store import WebhookStore, definition_problems
from fileq.webhooks.subscriptions import Subscriptions


def check_webhooks(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    config = loaded.config
    catalog = catalog_of(config, open_it)
    if catalog is None:
        return  # the check of the broker reports it
    store = WebhookStore(catalog, config.webhooks, wall_clock_ms)
    known = store.load()
    problems = [*store.problems, *Subscriptions(config.paths, "").set(known.values())]
    for one in known.values():
        problems += definition_problems(one.webhook, config.webhooks, config.worker.priorities)
        try:
            one.secrets(wall_clock_ms())
        except ConfigError as error:
            problems += error.problems
        if one.state.disabled:
            problems.append(f"webhook {one.webhook.name!r} is disabled: {one.state.disabled}")
    for problem in problems:
        yield wrong("webhooks", problem, "'fileq webhook list' shows the definitions")
    if known and not problems:
        yield sound("webhooks", ", ".join(known))


def catalog_of(config: Config, open_it: Callable[[], FullBroker]) -> FullBroker | None:
    """The broker, if its documents can be read without a change of its database."""
    if config.broker_kind == "memory" or (config.broker_kind == "sqlite" and not _is_current(config.sqlite.path)):
        return None
    try:
        broker = open_it()
        broker.catalog_revision("webhooks")
    except (BrokerError, ConfigError):
        return None
    return broker


def _is_current(path: str) -> bool:
    """Whether the database exists and opening it does not migrate it."""
    from fileq.brokers.sqlite.examine import older_schema

    return os.path.exists(path) and not older_schema(path)
