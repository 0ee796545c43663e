"""What a running process can take over from a changed configuration, and what needs a restart.

The broker, the observers and the producer keep the configuration that they were made with.
"""

from __future__ import annotations

from collections.abc import Iterator

from fileq.config.resolve import replaced_at, value_at
from fileq.config.schema import Config
from fileq.config.section import Section, keys_of

# What only the worker's own parts use: they are made again, see runtime/live_worker.py. Not worker.after: a producer
# that does not know a new `move:DIR` below scan_dir would take the moved files as new ones, again and again.
RELOADABLE = (
    "handlers",
    "handlers_are_given",
    "imports",
    "middleware",
    "schedules",
    "circuit_breaker",
    "webhooks",
    *(
        f"worker.{name}"
        for name in (
            *("count", "isolation", "reap_interval", "max_retries", "max_recoveries", "timeout", "shutdown_timeout"),
            *("max_memory", "capture_output", "allow_commands", "backoff", "path_map", "allowed_roots"),
            *("max_jobs_per_child", "pass_environment", "safe_open"),
        )
    ),
)


def is_reloadable(key: str) -> bool:
    """Whether a running worker takes over this setting, or all settings of this section, on SIGHUP."""
    return any(f"{key}.".startswith(f"{path}.") for path in RELOADABLE)


def with_reloadable(old: Config, new: Config) -> Config:
    """The old configuration with those settings of the new one that need no restart."""
    config = old
    for path in RELOADABLE:
        config = replaced_at(config, path, value_at(new, path))
    return config


def changed_keys(old: Config, new: Config) -> list[str]:
    """The keys whose values differ. A rotated password in an unchanged `redis.password_file` is no change."""
    keys = dict.fromkeys(_changed(old, new, ""))
    if new.redis.password_file and new.redis.password_file == old.redis.password_file:
        keys.pop("redis.password", None)
    return list(keys)


def _changed(old: Section, new: Section, inside: str) -> Iterator[str]:
    keys = keys_of(type(old))
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(before, Section) and isinstance(after, Section):
            yield from _changed(before, after, f"{inside}{name}.")
        elif name in keys:
            yield inside + name
        elif inside:
            yield inside.rstrip(".")  # a list that replaces the section, such as worker.backoff: [1s, 10s]
