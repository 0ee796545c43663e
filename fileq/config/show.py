"""The configuration for people: listings, the example file, the table in the README. Secrets never leave here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from fileq.config.load import Loaded
from fileq.config.resolve import value_at
from fileq.config.schema import Config, every_key, is_setting
from fileq.config.section import ListOf, MapOf, Section, keys_of, written
from fileq.config.suggest import unknown_key
from fileq.config.tree import DEFAULT, Origin
from fileq.core.errors import ConfigError

# Texts that mean themselves in any YAML reader without quotes; words like `off` and `null` do not.
_PLAIN = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z][\w-]*|(?:\d+(?:ms|[smhd]|[KMGT]?B))+", re.ASCII
)
_COMMENT_COLUMN = 56


class Row(Struct, frozen=True):
    """One setting: its dotted key, its value as YAML with secrets starred out, where it came from, and the same value
    as plain data."""

    key: str
    value: str
    origin: Origin
    plain: Any = None


def redacted(config: Config) -> dict[str, Any]:
    """Everything as plain values, as a person would write them, fit for logs and JSON."""
    values: dict[str, Any] = written(Config, config)
    return values


def to_listing(loaded: Loaded, key: str = "") -> list[Row]:
    """Every setting in order, or only those at and below a key."""
    rows = [
        Row(path, to_yaml(value), loaded.origins.get(path, DEFAULT), value)
        for path, value in _flat(Config, redacted(loaded.config), "")
    ]
    chosen = [row for row in rows if not key or f"{row.key}.".startswith(f"{key}.")]
    if not chosen and key in every_key():
        # A list stands where the section with this key would be.
        chosen = [row for row in rows if key.startswith(f"{row.key}.")]
    if not chosen:
        raise ConfigError(unknown_key(key))
    return chosen


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
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def example_yaml() -> str:
    """The text of config.example.yaml: every key with its default and a line on it."""
    head = (
        "# Every key of fileq with its default. A file that holds only some of them is complete.\n"
        "# Each can also be set in the environment: worker.count as WORKER_COUNT or FILEQ_WORKER_COUNT.\n"
    )
    lines = _example_lines(Config, Config(), "")
    return head + "".join(f"{text:<{_COMMENT_COLUMN}} # {comment}\n" for text, comment in lines)


def _example_lines(section: type[Section], values: Section, indent: str) -> Iterator[tuple[str, str]]:
    for key in keys_of(section).values():
        value = getattr(values, key.name)
        if isinstance(key.shape, type):
            yield f"{indent}{key.name}:", key.doc
            yield from _example_lines(key.shape, value, f"{indent}  ")
        elif isinstance(key.shape, ListOf) and isinstance(key.shape.item, type):
            yield f"{indent}{key.name}:", key.doc
            options = ", ".join(keys_of(key.shape.item))
            yield from ((f"{indent}  - {to_yaml(item)}", f"keys: {options}") for item in written(key.shape, value))
        else:
            yield f"{indent}{key.name}: {to_yaml(written(key.shape, value))}", key.doc


def markdown_table() -> str:
    """The table of settings in the README."""
    rows = [
        f"| `{path}` | `{to_yaml(written(key.shape, value_at(Config(), path)))}` | {key.doc.replace('<', '&lt;')} |"
        for path, key in every_key().items()
        if is_setting(key)
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"
