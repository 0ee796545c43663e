"""What others see of the configuration. People get listings and the example file, in which every value passes through
`to_plain`, which masks secrets. Handlers get neither the environment variables with secrets of
fileq nor a configuration with secrets. This module must never return an unmasked secret.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fileq.config.load import Loaded
from fileq.config.read import DEFAULT, Origin, unknown_key
from fileq.config.resolve import replaced_at, value_at
from fileq.config.schema import Config, every_key
from fileq.config.section import ListOf, MapOf, Section, keys_of, to_plain
from fileq.config.sources import FOREIGN_VARIABLES, PREFIX, locate, variable_names
from fileq.config.value_types import HIDDEN, ValueKind
from fileq.core.errors import ConfigError
from fileq.core.webhook import SECRET_PREFIX

# Texts that every YAML parser reads as this text without quotes. Words like `off` and `null` are not such texts.
_PLAIN = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z][\w-]*|(?:\d+(?:ms|[smhd]|[KMGT]?B))+", re.ASCII
)
_COMMENT_COLUMN = 56


class ListedSetting(Struct, frozen=True):
    """One line of a listing. Secrets are masked in both forms of the value."""

    key: str  # the dotted path
    value: str  # as YAML
    origin: Origin
    plain: Any = None  # the same value as plain data


def redacted(config: Config) -> dict[str, Any]:
    """Every key as plain data, as a person would write it, with secrets masked."""
    values: dict[str, Any] = to_plain(Config, config)
    return values


def to_listing(loaded: Loaded, key: str = "") -> list[ListedSetting]:
    """Every setting in the order of the schema, or only those at and below a key."""
    rows = [
        ListedSetting(path, to_yaml(value), loaded.origins.get(path, DEFAULT), value)
        for path, value in _flat(Config, redacted(loaded.config), "")
    ]
    chosen = [row for row in rows if not key or f"{row.key}.".startswith(f"{key}.")]
    if not chosen and key in every_key():
        # A plain list replaces the section that this key belongs to.
        chosen = [row for row in rows if key.startswith(f"{row.key}.")]
    elif not chosen and (found := locate(key)) is not None:  # a setting of one entry of a mapping
        parts, shape = found
        with contextlib.suppress(KeyError):  # there is no such entry
            value = to_plain(shape, functools.reduce(_part, parts, loaded.config))
            chosen = [ListedSetting(key, to_yaml(value), loaded.origins.get(key, DEFAULT), value)]
    if not chosen:
        raise ConfigError(unknown_key(key))
    return chosen


def _part(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _flat(section: type[Section], values: dict[str, Any], inside: str) -> Iterator[tuple[str, Any]]:
    for key in keys_of(section).values():
        path, value = inside + key.name, values[key.name]
        if isinstance(key.shape, type) and isinstance(value, dict):
            yield from _flat(key.shape, value, f"{path}.")
        elif isinstance(key.shape, MapOf) and value:
            yield from ((f"{path}.{name}", item) for name, item in value.items())
        else:
            yield path, value


def to_yaml(value: Any) -> str:
    """A plain value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_yaml(key)}: {to_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    if value is None:
        return "~"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    import json  # needed here only, and commands should start fast

    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def example_yaml() -> str:
    """The text of config.example.yaml: every key with its default and its help text."""
    head = (
        "# Every key of fileq with its default. All keys are optional.\n"
        "# Each can also be set in the environment: worker.count as WORKER_COUNT or FILEQ_WORKER_COUNT.\n"
    )
    lines = _example_lines(Config, Config(), "")
    return head + "".join(f"{text:<{_COMMENT_COLUMN}} # {comment}\n" for text, comment in lines)


def _example_lines(section: type[Section], values: Section, indent: str) -> Iterator[tuple[str, str]]:
    for key in keys_of(section).values():
        value = getattr(values, key.name)
        if isinstance(key.shape, type):
            yield f"{indent}{key.name}:", key.help
            yield from _example_lines(key.shape, value, f"{indent}  ")
        elif isinstance(key.shape, ListOf) and isinstance(key.shape.item, type) and value:
            yield f"{indent}{key.name}:", key.help
            options = ", ".join(keys_of(key.shape.item))
            yield from ((f"{indent}  - {to_yaml(item)}", f"keys: {options}") for item in to_plain(key.shape, value))
        else:
            yield f"{indent}{key.name}: {to_yaml(to_plain(key.shape, value))}", key.help


def secret_variables(passed: Iterable[str], environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The variables that set a password, or a URL with credentials in it, without those in `passed`."""
    kinds = dict(_kinds())
    names = {prefix + name: path for name, path in variable_names().items() for prefix in ("", PREFIX)}
    names |= FOREIGN_VARIABLES
    return tuple(
        name
        for name, path in names.items()
        if name not in {*passed} and _holds_secret(kinds.get(path), environ.get(name, ""))
    )


def _holds_secret(kind: ValueKind | None, value: str) -> bool:
    """A variable that is read as a whole section, such as webhooks.endpoints, has no kind."""
    return kind.mask(value) != value if kind is not None else SECRET_PREFIX in value


def without_secrets(config: Config) -> Config:
    """The same configuration with every password and every credential replaced by `***`."""
    for path, kind in _kinds():
        value = value_at(config, path)
        if isinstance(value, str) and (masked := kind.mask(value)) != value:
            config = replaced_at(config, path, masked)
    endpoints = tuple(replace(one, secret=HIDDEN if one.secret else "") for one in config.webhooks.endpoints)
    masked_config: Config = replaced_at(config, "webhooks.endpoints", endpoints)
    return masked_config


def _kinds() -> Iterator[tuple[str, ValueKind]]:
    return ((path, key.shape) for path, key in every_key().items() if isinstance(key.shape, ValueKind))
