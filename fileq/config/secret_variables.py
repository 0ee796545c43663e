"""Which environment variables hold secrets of fileq, and the configuration without secrets. Handlers get neither."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from fileq.config.foreign_variables import FOREIGN_VARIABLES
from fileq.config.kinds import HIDDEN, ValueKind
from fileq.config.resolve import replaced_at, value_at
from fileq.config.schema import Config, every_key
from fileq.config.sources import PREFIX, variable_names
from fileq.core.webhook import SECRET_PREFIX


def secret_variables(passed: Iterable[str], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The variables that set a password, or a URL with credentials in it, without those in `passed`.

    `environ` is the environment of this process unless it is given."""
    environ = os.environ if environ is None else environ
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
