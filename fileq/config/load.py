"""Loads the configuration, once, and says what a running process can take over from one that was loaded later.

No other module reads settings from the environment or from a file.

Owns the order of the steps: sources.py merges, read.py reads, resolve.py applies the rules between keys. Every entry
point here raises one ConfigError that holds all problems.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fileq.config.read import DEFAULT, Node, Origin, Reader, from_python
from fileq.config.resolve import Draft, backoff_problems, complete_route, replaced_at, resolve, value_at
from fileq.config.schema import BackoffSettings, Config, RouteSettings, ScheduleSettings, every_key, is_setting
from fileq.config.section import MapOf, Section, keys_of
from fileq.config.sources import find_file, merged, misspelt_variables, parsed_file, read_file, unknown_variables
from fileq.config.value_types import one_of
from fileq.core.errors import ConfigError


class Loaded(Struct, frozen=True):
    """A configuration and where it came from. `unknown_env` are the FILEQ_ variables that name no setting.
    `misspelt_env` has those of them that are similar to a known one, with that one."""

    config: Config
    origins: Mapping[str, Origin]
    path: str | None = None
    unknown_env: tuple[str, ...] = ()
    misspelt_env: Mapping[str, str] = {}

    def is_set(self, key: str) -> bool:
        """Whether a source gave this key, even if with its default value."""
        return self.origins.get(key, DEFAULT) != DEFAULT

    @property
    def source(self) -> str:
        """The file, or what there is without one."""
        if self.path is not None:
            return self.path
        given = any(map(self.is_set, self.origins))
        return "no file; settings from --set or the environment" if given else "no file, all defaults"

    @property
    def names_roots(self) -> bool:
        """Whether a source names the directories of files. If none does, the program may have none."""
        return any(map(self.is_set, ("producer.scan_dir", "worker.allowed_roots", "worker.path_map")))

    def new_database_warning(self, advice: str, *, directory: str = ".") -> str:
        """Why the directory may be a wrong one, if the database does not exist yet: it has no configuration, or that is
        in another directory and its database is not; "" otherwise. `advice` says how to name another queue."""
        path = os.path.abspath(self.config.sqlite.path)
        is_chosen = self.origins.get("sqlite.path", DEFAULT).layer not in ("default", "file")
        if self.config.broker_kind != "sqlite" or is_chosen or os.path.exists(path):
            return ""
        made = f"a new database is created, {path}"
        if self.path is None:
            return f"no configuration file in {os.path.abspath(directory)}: {made}; to use another queue, {advice}"
        configured = os.path.dirname(os.path.abspath(os.path.join(directory, self.path)))
        if configured == os.path.dirname(path) or os.path.isabs(self.config.sqlite.path):
            return ""
        return (
            f"sqlite.path of {self.path} is relative to the working directory: {made}; to use the database beside "
            "that file, start in its directory, or set an absolute sqlite.path"
        )


def load(
    path: str | None = None,
    sets: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Loaded:
    """The configuration from file, environment and --set."""
    directory, environ = Path(cwd or "."), os.environ if environ is None else environ
    problems: list[str] = []
    found = find_file(path, environ, directory)
    file = read_file(found, directory) if found else Node(None, DEFAULT)
    tree, names = merged(file, sets, environ, problems)
    config, origins = _config_of(tree, problems, directory)
    unknown = unknown_variables(environ, names)
    return Loaded(config, origins, found, unknown, misspelt_variables(environ, unknown, names))


def config_from(values: Mapping[str, Any]) -> Config:
    """The configuration of a file with these contents: config_from({"worker": {"count": 2, "timeout": "5s"}})."""
    return _config_of(from_python(values, Origin("file", "the given values")), [], Path())[0]


def loaded_from_text(text: str, name: str, cwd: Path) -> Loaded:
    """The configuration of a file with this name and text, without environment and --set."""
    config, origins = _config_of(parsed_file(text.encode(), name), [], cwd)
    return Loaded(config, origins, name)


def route_from(values: Mapping[str, Any], where: str, config: Config) -> RouteSettings:
    """The route that these values would describe in a file. Every problem begins with `where`."""
    reader = Reader()
    route = reader.section(RouteSettings, from_python(values, Origin("file", where)), "")
    route = complete_route(route, config, reader.origins, "")
    problems = reader.problems
    if route.backoff is not None and reader.is_valid("backoff"):
        problems = [*problems, *backoff_problems(route.backoff, reader.origins, "backoff")]
    if problems:
        raise ConfigError(problems)
    return route


def schedule_from(name: str, values: Mapping[str, Any], where: str, priorities: Sequence[str]) -> ScheduleSettings:
    """The schedule that these values would describe in a file. Every problem begins with `where`."""
    reader, origin = Reader(), Origin("file", where)
    given = {key: value for key, value in values.items() if value is not None}
    node = from_python({name: given}, origin)
    shape = every_key()["schedules"].shape
    assert isinstance(shape, MapOf)
    found: dict[str, ScheduleSettings] = reader.entries(shape, node, "schedules", {})
    problems = list(reader.problems)
    priority = values.get("priority")
    if priority and priority not in priorities:
        problems.append(origin.invalid(f"schedules.{name}.priority", repr(priority), f"one of {one_of(priorities)}"))
    if problems:
        raise ConfigError(problems)
    return found[name]


def _config_of(tree: Node, problems: list[str], cwd: Path) -> tuple[Config, Mapping[str, Origin]]:
    reader = Reader()
    config = reader.section(Config, tree, "", Config())
    config = msgspec.structs.replace(config, handlers_are_given="handlers" in reader.origins)
    config, contradictions = resolve(Draft(config, reader.origins, cwd, reader.is_valid))
    problems = [*problems, *reader.problems, *contradictions]
    if problems:
        raise ConfigError(problems)
    settings = (path for path, key in every_key().items() if is_setting(key))
    given = {path: origin for path, origin in reader.origins.items() if "[" not in path}
    origins = dict.fromkeys(settings, DEFAULT) | given
    if config.redis.password_file:
        origins["redis.password"] = origins["redis.password_file"]
    if origins["worker.backoff.max"] == DEFAULT and config.worker.backoff.max != BackoffSettings().max:
        origins["worker.backoff.max"] = origins["worker.backoff.base"]  # which has raised it
    return config, origins


def describe_broker_choice(loaded: Loaded) -> str:
    """One line for every start: which broker, where it is, and which setting chose it."""
    config = loaded.config
    broker = ", ".join(part for part in (config.broker_kind, config.broker_location) if part)
    for key, chosen in (("broker", config.broker), ("redis.url", config.redis.url), ("redis.addr", config.redis.addr)):
        if chosen:
            return f"{broker} ({key} from {loaded.origins[key]})"
    return f"{broker} (neither broker, redis.addr nor redis.url is set)"


# What a running process can take over from a changed configuration; the rest needs a restart. The broker, the observers
# and the producer keep the configuration that they were made with.
#
# What only the worker's own parts use: they are made again, see runtime/reload.py. Not worker.after: a producer
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
