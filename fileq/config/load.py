"""Reads the configuration, once. Nothing else in fileq looks at the environment or at configuration files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from fileq.config.read import Reader
from fileq.config.resolve import Draft, resolve
from fileq.config.schema import Config, every_key, is_setting
from fileq.config.sources import gather, parsed_file
from fileq.config.tree import DEFAULT, Node, Origin, from_python
from fileq.core.errors import ConfigError


class Loaded(Struct, frozen=True):
    """A configuration and where it came from."""

    config: Config
    origins: Mapping[str, Origin]
    path: str | None = None
    unknown_env: tuple[str, ...] = ()

    def is_set(self, key: str) -> bool:
        """Whether somebody gave this key, even if they gave it its default."""
        return self.origins.get(key, DEFAULT) != DEFAULT


def load(
    path: str | None = None,
    sets: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Loaded:
    """The configuration from file, environment and --set; a ConfigError holds everything that is wrong with it."""
    directory = Path(cwd or ".")
    gathered = gather(path, sets, os.environ if environ is None else environ, directory)
    config, origins = _finish(gathered.tree, gathered.problems, directory)
    return Loaded(config, origins, gathered.path, gathered.unknown_env)


def config_from(values: Mapping[str, Any]) -> Config:
    """The configuration of a file with these contents: config_from({"worker": {"count": 2, "timeout": "5s"}})."""
    return _finish(from_python(values, Origin("file", "the given values")), [], Path())[0]


def loaded_from_text(text: str, name: str, cwd: Path) -> Loaded:
    """The configuration that a file of this name with this text would be by itself."""
    config, origins = _finish(parsed_file(text.encode(), name), [], cwd)
    return Loaded(config, origins, name)


def _finish(tree: Node, problems: list[str], cwd: Path) -> tuple[Config, Mapping[str, Origin]]:
    reader = Reader()
    config = reader.section(Config, tree, "", Config())
    config, contradictions = resolve(Draft(config, reader.origins, cwd), reader.is_sound)
    problems = [*problems, *reader.problems, *contradictions]
    if problems:
        raise ConfigError(problems)
    settings = (path for path, key in every_key().items() if is_setting(key))
    origins = dict.fromkeys(settings, DEFAULT) | {
        path: origin for path, origin in reader.origins.items() if "[" not in path
    }
    if config.redis.password_file:
        origins["redis.password"] = origins["redis.password_file"]
    return config, origins


def describe_broker_choice(loaded: Loaded) -> str:
    """Which broker, where, and which setting chose it; every start says so."""
    config = loaded.config
    place = ", ".join(part for part in (config.broker_kind, config.broker_location) if part)
    for key, chosen in (("broker", config.broker), ("redis.url", config.redis.url), ("redis.addr", config.redis.addr)):
        if chosen:
            return f"{place} ({key} from {loaded.origins[key]})"
    return f"{place} (neither broker, redis.addr nor redis.url is set)"
