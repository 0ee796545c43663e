"""No secret is ever printed: not in errors, not in listings, not by repr."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.config import config_from, load
from fileq.config.load import describe_broker_choice
from fileq.config.show import redacted, to_listing
from fileq.config.value_types import mask_credentials
from fileq.core.errors import ConfigError

NOWHERE = "/nonexistent"
SECRETS = {
    "redis.password": "hunter2",
    "redis.url": "redis://user:hunter2@localhost:6379/0?password=hunter2",
    "observability.tracing.endpoint": "https://user:hunter2@collector:4318",
}


def test_no_view_of_a_configuration_shows_a_secret() -> None:
    loaded = load(sets=[f"{key}={value}" for key, value in SECRETS.items()], environ={}, cwd=NOWHERE)
    config = loaded.config
    views = [config, loaded, config.redis, redacted(config), to_listing(loaded), config.redis.__rich_repr__()]
    for text in (*map(repr, views), describe_broker_choice(loaded), config.broker_location):
        assert "hunter2" not in text
    assert config.redis.password == "hunter2"
    assert config.redis.url == SECRETS["redis.url"]


def test_the_repr_shows_what_is_not_secret() -> None:
    redis = config_from({"redis": {"addr": "h:1", "password": "hunter2", "db": 3}}).redis
    assert repr(redis).startswith(
        "RedisSettings(addr='h:1', url='', username='', password='***', password_file='', db=3, "
    )


def test_a_password_from_a_file_is_hidden_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    loaded = load(sets=["redis.password_file=secret"], environ={}, cwd=tmp_path)
    assert loaded.config.redis.password == "hunter2"
    assert "hunter2" not in repr(loaded) + repr(to_listing(loaded))


def test_a_hidden_value_differs_from_an_unset_one() -> None:
    assert redacted(config_from({}))["redis"]["password"] == ""
    assert redacted(config_from({"redis": {"password": "hunter2"}}))["redis"]["password"] == "***"


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("redis: {pasword: hunter2}", []),
        ("redis: {password: [hunter2]}", []),
        ("redis: {password: {hunter2: 1}}", []),
        ("redis: {password: *hunter2}", []),
        ("redis: {password: !hunter2 x}", []),
        ("redis: {password: &hunter2 *x}", []),
        ("redis: {password: !hunter2!x y}", []),
        ("redis: {password: 'hunter2}", []),
        ("redis: {password: a, password: hunter2}", []),
        ("redis:\n  password: hunter2: x\n", []),
        ("redis:\n  password: %hunter2\n", []),
        ("redis: redis://:hunter2@host", []),
        ("redis: {addr: 'redis://:hunter2@host:6379'}", []),
        ("redis: {addr: ':hunter2@host:6379'}", []),
        ("redis: {url: 'redis://:hunter2'}", []),
        ("redis: {url: 'http://:hunter2@host'}", []),
        ("redis: {url: 'redis://:hunter2@host:port'}", []),
        ("redis: {url: ':hunter2@host'}", []),
        ("", ["redis.password:hunter2"]),
        ("", ["redis.pasword=hunter2"]),
        ("", ["redis=hunter2"]),
        ("", ["redis.password=hunter2\0"]),
        ("redis: {password_file: config.yaml, password: hunter2}", []),
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, text: str, sets: list[str]) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(sets=sets, environ={}, cwd=tmp_path)
    assert "hunter2" not in str(caught.value)


@given(st.text(alphabet="ab:/@?#&=%[]", max_size=8))
def test_a_url_is_masked_for_every_password(noise: str) -> None:
    password = f"{noise}hunter2{noise}"
    assert "hunter2" not in mask_credentials(f"redis://user:{password}@host:6379/0")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user:pw@h:1/0", "redis://***@h:1/0"),
        ("redis+sentinel://:pw@h1,h2/master/0", "redis+sentinel://***@h1,h2/master/0"),
        ("redis://h/0?db=1&Password=pw&x=y", "redis://h/0?db=1&Password=***&x=y"),
        ("localhost:6379", "localhost:6379"),
    ],
)
def test_masking_keeps_the_rest_of_the_url(url: str, masked: str) -> None:
    assert mask_credentials(url) == masked


def test_the_query_of_the_collector_is_hidden() -> None:
    """L6: `fileq config list` showed the token in observability.tracing.endpoint."""
    config = config_from({"observability": {"tracing": {"endpoint": "https://otel.example/v1?token=hunter2"}}})
    assert redacted(config)["observability"]["tracing"]["endpoint"] == "https://otel.example/v1?***"
    assert "hunter2" not in repr(config)
