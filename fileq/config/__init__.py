"""The configuration: loaded once from YAML file, environment and --set, validated, frozen, and passed in.

    loaded = load(path, sets=["worker.count=8"])
    loaded.config.worker.count, loaded.origins["worker.count"]

| module      | owns                                                                                 |
|-------------|--------------------------------------------------------------------------------------|
| schema.py   | every key: type, limits, default, help text                                          |
| redis_schema.py | the keys below `redis`                                                           |
| failure_settings.py | the keys about failed attempts: backoff and circuit breaker                   |
| schedule_settings.py | the keys of one schedule                                                    |
| kinds.py    | the kinds of values: read from text, written as text, masked                         |
| webhook_settings.py | the keys below `webhooks`                                                      |
| server_settings.py | the keys below `server`                                                         |
| section.py  | what a section is; the keys derived from its type hints                              |
| sources.py  | the YAML file, the environment and --set as layers of one tree                       |
| read.py     | the tree read into sections, with the origin of every value                          |
| resolve.py  | rules between keys; what a route inherits from the worker                            |
| password_file.py | the password in its file, read again when it may have changed                    |
| load.py     | the steps in order: gather, read, resolve                                            |
| secret_variables.py | the variables of the environment that hold secrets                             |
| reload.py   | which settings a running process can take over                                       |
| show.py     | listings, the example file, the table of settings.md                                 |
| edit.py     | one setting changed in the file, comments kept                                       |
"""

from fileq.config.failure_settings import BackoffSettings, CircuitBreakerSettings
from fileq.config.load import Loaded, config_from, describe_broker_choice, load, route_from, schedule_from
from fileq.config.observability import ObservabilitySettings, TracingSettings
from fileq.config.password_file import PasswordFile
from fileq.config.read import Origin
from fileq.config.redis_schema import RedisSettings, TlsSettings
from fileq.config.reload import changed_keys, with_reloadable
from fileq.config.resolve import RouteOptions, inherit_from_worker
from fileq.config.schedule_settings import ScheduleSettings
from fileq.config.schema import (
    AfterSettings,
    Config,
    ProducerSettings,
    RouteSettings,
    SqliteSettings,
    WorkerSettings,
)
from fileq.config.secret_variables import secret_variables, without_secrets
from fileq.config.show import ListedSetting, example_yaml, markdown_table, redacted, to_listing
from fileq.config.value_types import MOVE

__all__ = [
    "MOVE",
    "AfterSettings",
    "BackoffSettings",
    "CircuitBreakerSettings",
    "Config",
    "ListedSetting",
    "Loaded",
    "ObservabilitySettings",
    "Origin",
    "PasswordFile",
    "ProducerSettings",
    "RedisSettings",
    "RouteOptions",
    "RouteSettings",
    "ScheduleSettings",
    "SqliteSettings",
    "TlsSettings",
    "TracingSettings",
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
