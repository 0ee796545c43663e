"""Which broker the settings choose, and the files that the settings of Redis name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fileq.config import config_from
from fileq.config.load import describe_broker_choice
from fileq.config.read import Origin
from tests.support.config_loading import ConfigDirectory


@pytest.fixture
def config_directory(tmp_path: Path) -> ConfigDirectory:
    return ConfigDirectory(tmp_path)


@pytest.mark.parametrize(
    ("settings", "kind", "choice"),
    [
        ([], "sqlite", "sqlite, ./fileq.db (neither broker, redis.addr nor redis.url is set)"),
        (["redis.addr=h:1"], "redis", "redis, h:1 (redis.addr from --set)"),
        (["redis.url=redis://:pw@h:1/0"], "redis", "redis, redis://***@h:1/0 (redis.url from --set)"),
        (["redis.addr=h:1", "redis.url=redis://g"], "redis", "redis, redis://g (redis.url from --set)"),
        (["redis.addr=h:1", "broker=sqlite"], "sqlite", "sqlite, ./fileq.db (broker from --set)"),
        (["broker=redis"], "redis", "redis, localhost:6379 (broker from --set)"),
        (["broker=memory"], "memory", "memory, this process only (broker from --set)"),
    ],
)
def test_the_settings_choose_the_broker_and_the_description_names_the_setting(
    config_directory: ConfigDirectory, settings: list[str], kind: str, choice: str
) -> None:
    loaded = config_directory.load(None, {}, *settings)
    assert loaded.config.broker_kind == kind
    assert describe_broker_choice(loaded) == choice


def test_the_description_names_the_line_of_the_file(config_directory: ConfigDirectory) -> None:
    loaded = config_directory.load("# ours\nredis:\n  addr: localhost:6379\n")
    assert describe_broker_choice(loaded) == "redis, localhost:6379 (redis.addr from config.yaml:3)"


def test_a_broker_from_an_installed_package_is_accepted_by_name(
    config_directory: ConfigDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fileq.config.value_types.installed_brokers", lambda: ("postgres",))
    loaded = config_directory.load(None, {}, "broker=postgres")
    assert loaded.config.broker_kind == "postgres"
    assert describe_broker_choice(loaded) == "postgres (broker from --set)"
    assert config_directory.problems(None, {}, "broker=mysql")[0].endswith(
        "it must be redis, sqlite, memory or postgres"
    )


@pytest.mark.parametrize(
    ("addr", "host_and_port"), [("", ("localhost", 6379)), ("h:1", ("h", 1)), ("[::1]:6380", ("::1", 6380))]
)
def test_an_address_is_a_host_and_a_port(addr: str, host_and_port: tuple[str, int]) -> None:
    assert config_from({"redis": {"addr": addr}}).redis.host_and_port == host_and_port


# Files that settings name


def test_the_password_file_is_read_without_its_last_newline(config_directory: ConfigDirectory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    loaded = config_directory.load("redis: {password_file: secret}")
    assert loaded.config.redis.password == "hunter2"
    assert loaded.origins["redis.password"] == Origin("file", "config.yaml:1")
    assert config_directory.load("", {"REDIS_PASSWORD": "x"}).origins["redis.password"] == Origin(
        "env", "REDIS_PASSWORD"
    )


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\n", "is empty"), (b"\xff", "not UTF-8 text")])
def test_an_unusable_password_file_is_named(
    config_directory: ConfigDirectory, tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    (line,) = config_directory.problems("redis: {password_file: secret}")
    assert line.startswith("config.yaml:1: redis.password_file 'secret'")
    assert why in line


def test_password_and_password_file_exclude_each_other(config_directory: ConfigDirectory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    assert config_directory.problems("redis: {password_file: secret}", {"REDIS_PASSWORD": "hunter3"}) == (
        "redis.password and redis.password_file are both set (REDIS_PASSWORD, config.yaml:1); keep one",
    )


def test_tls_files_must_exist_and_a_key_needs_its_certificate(
    config_directory: ConfigDirectory, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").touch()
    assert config_directory.problems("redis: {tls: {ca_file: no.pem, key_file: key.pem}}") == (
        "config.yaml:1: redis.tls.ca_file is 'no.pem'; it must be an existing file that can be read",
        "config.yaml:1: redis.tls.key_file is 'key.pem'; it must be given together with redis.tls.cert_file",
    )
