"""From values that are right each by itself to a configuration that is right as a whole: names take their
prefix, priorities their queues, the password is fetched from its file, contradictions are found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fileq.config.kinds import Name, one_of
from fileq.config.schema import DEFAULT_PREFIX, Config, every_key
from fileq.config.section import written
from fileq.config.tree import DEFAULT, Origin
from fileq.core.errors import ConfigError

# Names under the prefix that have no setting (SPEC, Redis layout).
_FIXED_NAMES = ("cancelled", "scheduled", "workers", "settled", "ledger", "stats", "paused", "events")


class Draft(Struct, frozen=True):
    """A configuration on its way, and which of its values were given."""

    config: Config
    origins: Mapping[str, Origin]
    cwd: Path

    def complaint(self, path: str, expected: str) -> str:
        shown = written(every_key()[path].shape, value_at(self.config, path))
        return self.origin(path).complaint(path, repr(shown), expected)

    def origin(self, path: str) -> Origin:
        return self.origins.get(path, DEFAULT)


def with_names(draft: Draft) -> Config:
    """Every name that nobody set takes the prefix, every priority its queue; the default priority is one of them."""
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
    """The password that `password_file` holds, as `password`."""
    path = draft.config.redis.password_file
    if not path:
        return draft.config
    origin = draft.origin("redis.password_file")
    try:
        password = (draft.cwd / path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(origin.remark(f"redis.password_file {path!r} cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError:
        raise ConfigError(origin.remark(f"redis.password_file {path!r} is not a text in UTF-8")) from None
    if not password:
        raise ConfigError(origin.remark(f"redis.password_file {path!r} is empty; write the password into it"))
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
            yield draft.complaint(path, "a file that is there and can be read")
    if draft.config.redis.tls.key_file and not draft.config.redis.tls.cert_file:
        yield draft.complaint("redis.tls.key_file", "given together with redis.tls.cert_file")


def _priorities_differ(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    if len(set(priorities)) < len(priorities):
        yield draft.complaint("worker.priorities", "a list without repetitions")


def _queues_have_priorities(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    for path, origin in draft.origins.items():
        name = path.removeprefix("worker.queues.")
        if name != path and name not in priorities:
            advice = f"add {name!r} to worker.priorities ({', '.join(priorities)}) or remove it"
            yield origin.remark(f"{path} is the queue of no priority; {advice}")


def _default_priority_exists(draft: Draft) -> Iterator[str]:
    priorities = draft.config.worker.priorities
    if draft.config.producer.default_priority not in priorities:
        yield draft.complaint("producer.default_priority", f"one of worker.priorities: {one_of(priorities)}")


def _names_differ(draft: Draft) -> Iterator[str]:
    """Two uses of one list would mix their jobs."""
    config = draft.config
    users = {f"{config.redis.prefix}:{name}": "fileq itself" for name in _FIXED_NAMES}
    names = {path: value_at(config, path) for path in _name_paths()}
    names |= {f"worker.queues.{priority}": name for priority, name in config.worker.queues.items()}
    for path, name in names.items():
        other = users.setdefault(name, path)
        if other != path:
            origin = draft.origin(path) if path in draft.origins else draft.origin(other)
            yield origin.remark(f"{path} is {name!r}, which {other} uses too; each needs a name of its own")


# A check is left out when a value it looks at is wrong already: one mistake, one line.
_CHECKS: tuple[tuple[Callable[[Draft], Iterator[str]], tuple[str, ...]], ...] = (
    (_one_password, ("redis.password", "redis.password_file")),
    (_tls_files, ("redis.tls",)),
    (_priorities_differ, ("worker.priorities",)),
    (_queues_have_priorities, ("worker.priorities", "worker.queues")),
    (_default_priority_exists, ("worker.priorities", "producer.default_priority")),
    (_names_differ, ("redis.prefix", "worker", "producer.rate_limit_key")),
)


def resolve(draft: Draft, is_sound: Callable[..., bool]) -> tuple[Config, list[str]]:
    """The finished configuration, and what is wrong with it."""
    if is_sound("worker.priorities", "redis.prefix"):
        draft = msgspec.structs.replace(draft, config=with_names(draft))
    problems = [line for check, paths in _CHECKS if is_sound(*paths) for line in check(draft)]
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
    """A copy of the section with one value changed, however deep."""
    name, _, rest = path.partition(".")
    inner = replaced_at(getattr(section, name), rest, value) if rest else value
    return msgspec.structs.replace(section, **{name: inner})


def _name_paths() -> list[str]:
    return [path for path, key in every_key().items() if isinstance(key.shape, Name) and path != "redis.prefix"]
