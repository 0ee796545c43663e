"""The configuration: parsed once, frozen, passed in. YAML file + environment + --set, and all validation.

    loaded = load(path, sets=["worker.count=8"])
    loaded.config.worker.count, loaded.origins["worker.count"]

schema.py holds the keys, sources.py where values come from, read.py and resolve.py turn them into a Config,
show.py prints them, edit.py and change.py write one into the file.
"""

from fileq.config.load import Loaded, config_from, describe_broker_choice, load
from fileq.config.schema import (
    AfterEnd,
    Backoff,
    CircuitBreaker,
    Config,
    Observability,
    Producer,
    Redis,
    Route,
    Sqlite,
    Tls,
    Tracing,
    Worker,
)
from fileq.config.show import Row, example_yaml, markdown_table, redacted, to_listing
from fileq.config.tree import Origin
from fileq.config.units import format_duration, parse_duration

__all__ = [
    "AfterEnd",
    "Backoff",
    "CircuitBreaker",
    "Config",
    "Loaded",
    "Observability",
    "Origin",
    "Producer",
    "Redis",
    "Route",
    "Row",
    "Sqlite",
    "Tls",
    "Tracing",
    "Worker",
    "config_from",
    "describe_broker_choice",
    "example_yaml",
    "format_duration",
    "load",
    "markdown_table",
    "parse_duration",
    "redacted",
    "to_listing",
]
