"""The configuration: loaded once from YAML file, environment and --set, validated, frozen, and passed in.

loaded = load(path, sets=["worker.count=8"])
loaded.config.worker.count, loaded.origins["worker.count"]
"""

from fileq.config.load import (
    Loaded,
    changed_keys,
    config_from,
    describe_broker_choice,
    load,
    route_from,
    schedule_from,
    with_reloadable,
)
from fileq.config.read import Origin
from fileq.config.resolve import RouteOptions, inherit_from_worker
from fileq.config.schema import (
    AfterSettings,
    BackoffSettings,
    CircuitBreakerSettings,
    Config,
    RedisSettings,
    RouteSettings,
    TlsSettings,
    WorkerSettings,
)
from fileq.config.show import (
    ListedSetting,
    example_yaml,
    markdown_table,
    redacted,
    secret_variables,
    to_listing,
    without_secrets,
)
from fileq.config.sources import PasswordFile
from fileq.config.value_types import MOVE

__all__ = [
    "MOVE",
    "AfterSettings",
    "BackoffSettings",
    "CircuitBreakerSettings",
    "Config",
    "ListedSetting",
    "Loaded",
    "Origin",
    "PasswordFile",
    "RedisSettings",
    "RouteOptions",
    "RouteSettings",
    "TlsSettings",
    "WorkerSettings",
    "changed_keys",
    "config_from",
    "describe_broker_choice",
    "example_yaml",
    "inherit_from_worker",
    "load",
    "markdown_table",
    "redacted",
    "route_from",
    "schedule_from",
    "secret_variables",
    "to_listing",
    "with_reloadable",
    "without_secrets",
]
