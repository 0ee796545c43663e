"""Loads configurations from a given text, environment and --set, isolated from the machine that runs the tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fileq.config import Loaded, config_from, load
from fileq.core.errors import ConfigError


class ConfigDirectory:
    """A working directory with a config.yaml, and an empty environment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, text: str | bytes | None = None, environ: Mapping[str, str] | None = None, *sets: str) -> Loaded:
        """load() here, after config.yaml was written with this text. Without a text the file stays as it is."""
        if text is not None:
            (self.path / "config.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load(sets=sets, environ=environ or {}, cwd=self.path)

    def problems(
        self, text: str | bytes | None = None, environ: Mapping[str, str] | None = None, *sets: str
    ) -> tuple[str, ...]:
        """Every problem that the same load() reports."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, environ, *sets)
        return caught.value.problems


def problems_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Every problem that config_from() reports, without the origin."""
    with pytest.raises(ConfigError) as caught:
        config_from(values)
    return tuple(line.removeprefix("the given values: ") for line in caught.value.problems)
