"""Rules between keys: defaults that depend on other keys, what a route inherits from the worker, contradictions.

Its input is a configuration whose values are individually valid; its output is valid as a whole. The only file it
reads is `redis.password_file`; of the TLS files it only checks that they can be read. It resolves symbolic links to
compare directories.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from fileq.config.read import DEFAULT, Origin
from fileq.config.schema import DEFAULT_PREFIX, BackoffSettings, Config, RouteSettings, every_key
from fileq.config.section import Section, keys_of, to_plain
from fileq.config.sources import FOREIGN_VARIABLES, read_password
from fileq.config.value_types import MOVE, KeyNameKind, one_of
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration

S = TypeVar("S", bound=Section)
# Keys below the prefix whose names have no setting.
_FIXED_NAMES = (
    *("cancelled", "scheduled", "workers", "settled", "ledger", "stats", "paused", "events", "breaker_resets"),
    *("producers", "schedules", "schedule_states", "deadlines"),
)


class Draft(Struct, frozen=True):
    """A configuration before the rules are applied, and the origins of the values that were given."""

    config: Config
    origins: Mapping[str, Origin]
    cwd: Path
    is_valid: Callable[..., bool]  # whether no problem is known at or below these paths

    def invalid(self, path: str, expected: str) -> str:
        shown = to_plain(every_key()[path].shape, value_at(self.config, path))
        return self.origin(path).invalid(path, repr(shown), expected)

    def origin(self, path: str) -> Origin:
        return self.origins.get(path, DEFAULT)


def with_general_options(route: RouteSettings, config: Config) -> RouteSettings:
    """The route with the general options in place of those that it does not set."""
    worker = config.worker
    general: dict[str, Any] = {
        **{name: getattr(worker, name) for name in ("timeout", "max_retries", "backoff")},
        # A command is a process of its own. Below a child process it also dies when the worker is killed.
        "isolation": worker.isolation if route.command is None else "process",
        # Handlers that change a file often write a new one beside it, for which they need its name.
        "safe_open": worker.safe_open and not route.in_place,
        "circuit_breaker": config.circuit_breaker,
    }
    unset = {name: value for name, value in general.items() if getattr(route, name) is None}
    return msgspec.structs.replace(route, **unset)


def complete_route(route: RouteSettings, config: Config, origins: Mapping[str, Origin], inside: str) -> RouteSettings:
    """The route with a complete backoff and circuit breaker: keys that it does not set are the general ones. `inside`
    is what the paths of its keys begin with. A list of delays has no keys. As the route's backoff it inherits nothing;
    as the worker's it passes nothing on."""
    backoff, general = route.backoff, config.worker.backoff
    if backoff is not None and not backoff.delays and not general.delays:
        backoff = _inherited(backoff, general, origins, f"{inside}backoff.")
    breaker = route.circuit_breaker
    if breaker is not None:
        breaker = _inherited(breaker, config.circuit_breaker, origins, f"{inside}circuit_breaker.")
    return msgspec.structs.replace(route, backoff=backoff, circuit_breaker=breaker)


def _inherited(own: S, general: S, origins: Mapping[str, Origin], inside: str) -> S:
    given = {name: getattr(own, name) for name in keys_of(type(own)) if inside + name in origins}
    return msgspec.structs.replace(general, **given)


def backoff_problems(backoff: BackoffSettings, origins: Mapping[str, Origin], path: str) -> Iterator[str]:
    """What is wrong with a complete backoff at `path`."""
    if backoff.strategy == "power" and backoff.base <= 1:
        origin = origins.get(f"{path}.base") or origins.get(path, DEFAULT)
        base = format_duration(backoff.base)
        yield origin.message(f"{path}.base is {base}; with strategy power it must be above 1s")
    given = origins.get(f"{path}.base") or origins.get(f"{path}.max")
    # A default base above the maximum is no mistake: every delay is the maximum, as it was given.
    has_base = f"{path}.base" in origins or backoff.base != BackoffSettings().base
    if given and has_base and not backoff.delays and backoff.base > backoff.max:
        base, most = (_with_origin(backoff, name, origins, path) for name in ("base", "max"))
        advice = f"set {path}.max to at least {format_duration(backoff.base)}, or {path}.base to less"
        yield given.message(f"{path}.base is {base}, which is above {path}.max, {most}; {advice}")


def _with_origin(backoff: BackoffSettings, name: str, origins: Mapping[str, Origin], path: str) -> str:
    """The value of a key of a backoff at `path`, and where it comes from if it is not given there."""
    value = getattr(backoff, name)
    shown = format_duration(value)
    if f"{path}.{name}" in origins:
        return shown
    is_default = value == getattr(BackoffSettings(), name)
    return f"{shown} ({'the default' if is_default else 'from worker.backoff'})"


def with_longest_delay(draft: Draft) -> Config:
    """A base that another job server's variable sets is not cut by our default maximum, which that server lacks."""
    backoff = draft.config.worker.backoff
    is_foreign = FOREIGN_VARIABLES.get(draft.origin("worker.backoff.base").name) == "worker.backoff.base"
    if not is_foreign or "worker.backoff.max" in draft.origins or backoff.base <= backoff.max:
        return draft.config
    config: Config = replaced_at(draft.config, "worker.backoff.max", backoff.base)
    return config


def with_names(draft: Draft) -> Config:
    """Every key name that is not set begins with the prefix. The default priority is one of the priorities."""
    config, prefix = draft.config, draft.config.redis.prefix
    worker = config.worker
    changes: dict[str, Any] = {
        path: prefix + value_at(config, path).removeprefix(DEFAULT_PREFIX)
        for path in _name_paths()
        if path not in draft.origins
    }
    changes["worker.queues"] = {
        priority: worker.queues[priority]
        if f"worker.queues.{priority}" in draft.origins
        else f"{prefix}:{priority}_priority"
        for priority in worker.priorities
    }
    if "producer.default_priority" not in draft.origins and config.producer.default_priority not in worker.priorities:
        changes["producer.default_priority"] = worker.priorities[-1]
    for path, value in changes.items():
        config = replaced_at(config, path, value)
    return config


def with_password(draft: Draft) -> Config:
    """`password` holds the content of `password_file`, if that is set."""
    path = draft.config.redis.password_file
    if not path:
        return draft.config
    origin = draft.origin("redis.password_file")
    try:
        password = read_password(draft.cwd / path)
    except OSError as error:
        raise ConfigError(origin.message(f"redis.password_file {path!r} cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError:
        raise ConfigError(origin.message(f"redis.password_file {path!r} is not UTF-8 text")) from None
    if not password:
        raise ConfigError(origin.message(f"redis.password_file {path!r} is empty; write the password into it"))
    config: Config = replaced_at(draft.config, "redis.password", password)
    return config


def _one_password(draft: Draft) -> Iterator[str]:
    redis = draft.config.redis
    if redis.password and redis.password_file:
        origins = f"{draft.origin('redis.password')}, {draft.origin('redis.password_file')}"
        yield f"redis.password and redis.password_file are both set ({origins}); keep one"


def _tls_files(draft: Draft) -> Iterator[str]:
    for name in ("ca_file", "cert_file", "key_file"):
        path = f"redis.tls.{name}"
        file = value_at(draft.config, path)
        if file and not os.access(draft.cwd / file, os.R_OK):
            yield draft.invalid(path, "an existing file that can be read")
    if draft.config.redis.tls.key_file and not draft.config.redis.tls.cert_file:
        yield draft.invalid("redis.tls.key_file", "given together with redis.tls.cert_file")


def _priorities_differ(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    if len(set(priorities)) < len(priorities):
        yield draft.invalid("worker.priorities", "a list without duplicates")


def _queues_have_priorities(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    for path, origin in draft.origins.items():
        name = path.removeprefix("worker.queues.")
        if name != path and name not in priorities:
            advice = f"add {name!r} to worker.priorities ({', '.join(priorities)}) or remove it"
            yield origin.message(f"{path} belongs to no priority; {advice}")


def _default_priority_exists(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    if draft.config.producer.default_priority not in priorities:
        yield draft.invalid("producer.default_priority", f"one of worker.priorities: {one_of(priorities)}")


def _names_differ(draft: Draft) -> Iterator[str]:
    """Two uses of one key would mix their data."""
    config = draft.config
    users = {f"{config.redis.prefix}:{name}": "fileq itself" for name in _FIXED_NAMES}
    names = {path: value_at(config, path) for path in _name_paths()}
    names |= {f"worker.queues.{priority}": name for priority, name in config.worker.queues.items()}
    for path, name in names.items():
        other = users.setdefault(name, path)
        if other != path:
            origin = draft.origin(path) if path in draft.origins else draft.origin(other)
            yield origin.message(f"{path} is {name!r}, which {other} uses too; each needs a name of its own")


def _backoffs_are_possible(draft: Draft) -> Iterator[str]:
    backoffs: dict[str, BackoffSettings | None] = {"worker.backoff": draft.config.worker.backoff}
    backoffs |= {f"handlers[{index}].backoff": route.backoff for index, route in enumerate(draft.config.handlers)}
    for path, backoff in backoffs.items():
        if backoff is not None and draft.is_valid(path):
            yield from backoff_problems(backoff, draft.origins, path)


def _route_names_differ(draft: Draft) -> Iterator[str]:
    first: dict[str, str] = {}
    for index, route in enumerate(draft.config.handlers):
        path = f"handlers[{index}].name"
        if route.name is not None and (other := first.setdefault(route.name, path)) != path:
            message = f"{path} is {route.name!r}, which {other} is too; each route needs a name of its own"
            yield draft.origin(path).message(message)


def _files_leave_scan_dir(draft: Draft) -> Iterator[str]:
    """A file moved into scan_dir itself would be found again, under a new name each time."""
    config = draft.config
    scan_dir = os.path.abspath(draft.cwd / config.producer.scan_dir)
    roots = {os.path.realpath(scan_dir), os.path.realpath(os.fsdecode(config.paths.here(os.fsencode(scan_dir))))}
    for path in ("worker.after.completed", "worker.after.dead"):
        rule = value_at(config, path)
        if rule.startswith(MOVE) and os.path.realpath(draft.cwd / rule.removeprefix(MOVE)) in roots:
            yield draft.invalid(path, "a directory other than producer.scan_dir, for example one below it")


def _schedules_have_queues(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    for name, schedule in draft.config.schedules.items():
        if schedule.priority is not None and schedule.priority not in priorities:
            path = f"schedules.{name}.priority"
            yield draft.origin(path).invalid(path, repr(schedule.priority), f"one of {one_of(priorities)}")


# A check is skipped if one of its values is known to be invalid: one mistake, one line.
_CHECKS: tuple[tuple[Callable[[Draft], Iterator[str]], tuple[str, ...]], ...] = (
    (_one_password, ("redis.password", "redis.password_file")),
    (_tls_files, ("redis.tls",)),
    (_backoffs_are_possible, ("worker.backoff",)),
    (_priorities_differ, ("worker.priorities",)),
    (_queues_have_priorities, ("worker.priorities", "worker.queues")),
    (_default_priority_exists, ("worker.priorities", "producer.default_priority")),
    (_route_names_differ, ("handlers",)),
    (_schedules_have_queues, ("schedules", "worker.priorities")),
    (_files_leave_scan_dir, ("worker.after", "worker.path_map", "worker.allowed_roots", "producer.scan_dir")),
    (_names_differ, ("redis.prefix", "worker", "producer.rate_limit_key")),
)


def resolve(draft: Draft) -> tuple[Config, list[str]]:
    """The complete configuration, and the contradictions in it."""
    if draft.is_valid("worker.priorities", "redis.prefix"):
        draft = msgspec.structs.replace(draft, config=with_names(draft))
    if draft.is_valid("worker.backoff"):
        draft = msgspec.structs.replace(draft, config=with_longest_delay(draft))
    config, origins = draft.config, draft.origins
    routes = tuple(complete_route(one, config, origins, f"handlers[{i}].") for i, one in enumerate(config.handlers))
    draft = msgspec.structs.replace(draft, config=msgspec.structs.replace(config, handlers=routes))
    problems = [line for check, paths in _CHECKS if draft.is_valid(*paths) for line in check(draft)]
    try:
        return with_password(draft), problems
    except ConfigError as error:
        return draft.config, [*problems, *error.problems]


def value_at(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def replaced_at(section: Any, path: str, value: Any) -> Any:
    """A copy of the section with the value at a dotted path replaced."""
    name, _, rest = path.partition(".")
    inner = replaced_at(getattr(section, name), rest, value) if rest else value
    return msgspec.structs.replace(section, **{name: inner})


def _name_paths() -> list[str]:
    return [path for path, key in every_key().items() if isinstance(key.shape, KeyNameKind) and path != "redis.prefix"]
