"""Configurations made in code, and sent to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys

import msgspec
import pytest

from fileq.config import Config, config_from
from fileq.config.show import redacted
from fileq.core.errors import ConfigError


def test_config_from_accepts_plain_values() -> None:
    config = config_from({"worker": {"count": 2, "timeout": "5s", "allow_commands": True, "backoff": {"jitter": 0}}})
    assert (config.worker.count, config.worker.timeout, config.worker.allow_commands) == (2, 5.0, True)
    assert config.worker.backoff.jitter == 0.0
    assert config_from({}) == Config()


def test_config_from_validates_like_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^the given values: worker\.count is '0'"):
        config_from({"worker": {"count": 0}})


def test_a_configuration_can_be_sent_to_another_process() -> None:
    config = config_from({"worker": {"path_map": {"/a": "/b"}}, "redis": {"password": "x"}})
    assert pickle.loads(pickle.dumps(config)) == config
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=Config) == config


@pytest.mark.parametrize(
    ("values", "are_given"),
    [
        ({}, False),
        ({"handlers": None}, False),
        ({"handlers": []}, True),
        ({"handlers": [{"match": "**/*", "use": "fileq.handlers:checksum"}]}, True),
    ],
)
def test_a_configuration_knows_whether_handlers_were_given(values: dict[str, object], are_given: bool) -> None:
    config = config_from(values)
    assert config.handlers_are_given is are_given
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=Config)
    assert received.handlers_are_given is are_given


def test_whether_handlers_were_given_is_not_a_setting() -> None:
    assert "handlers_are_given" not in redacted(Config())
    with pytest.raises(ConfigError, match="unknown key 'handlers_are_given'"):
        config_from({"handlers_are_given": True})


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    heavy = {"redis", "opentelemetry", "rich", "starlette", "uvicorn", "yaml", "structlog", "importlib.metadata"}
    program = (
        f"import sys, fileq.config; fileq.config.load(environ={{}}, cwd='/'); print({heavy!r} & sys.modules.keys())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
