"""Client(where): which configuration it works with, and the addresses that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fileq.client.address import config_at, server_address
from fileq.client.client import Client
from fileq.config import Config
from fileq.core.errors import ConfigError


def test_an_address_changes_the_broker_and_keeps_the_other_settings(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "config.yaml").write_text("worker: {priorities: [a, b]}\nsqlite: {path: ./own.db}\n")
    (tmp_path / "other.yaml").write_text("worker: {priorities: [c]}\n")
    monkeypatch.chdir(tmp_path)
    assert config_at(None).sqlite.path == "./own.db"
    redis = config_at("redis://h:7000/2")
    assert (redis.broker_kind, redis.redis.url, redis.worker.priorities) == ("redis", "redis://h:7000/2", ("a", "b"))
    sqlite = config_at("sqlite:/tmp/x.db")
    assert (sqlite.broker_kind, sqlite.sqlite.path, sqlite.worker.priorities) == ("sqlite", "/tmp/x.db", ("a", "b"))
    assert config_at("other.yaml").worker.priorities == ("c",)
    given = Config()
    assert config_at(given) is given


def test_relative_paths_begin_in_the_directory_of_the_application(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("worker: {allowed_roots: [in], after: {completed: 'move:done'}}\n")
    config = config_at(None, app_dir=str(tmp_path))
    assert config.sqlite.path == str(tmp_path / "./fileq.db")
    assert config.producer.scan_dir == str(tmp_path / "./data")
    assert config.worker.allowed_roots == (str(tmp_path / "in"),)
    assert config.worker.after.completed == f"move:{tmp_path / 'done'}"


def test_the_address_of_a_server_is_read_without_connecting() -> None:
    assert str(server_address("http://queue:8080", "k")) == "http://queue:8080"
    address = server_address("https://queue/fileq/", "secret")
    assert (address.is_https, address.port, address.path) == (True, 443, "/fileq/api/v1")
    assert server_address("https://queue/fileq/api/v1", "k").path == "/fileq/api/v1"
    assert (server_address("http://[::1]", "k").host, server_address("http://[::1]", "k").port) == ("::1", 80)
    assert "secret" not in repr(address)
    Client("http://queue:8080", key="secret").close()


@pytest.mark.parametrize(
    ("where", "key", "message"),
    [
        ("http://queue", "", "key is missing"),
        ("http://me:pw@queue", "k", "has a user name or password"),
        ("http://", "k", "is not a server address"),
        ("http://queue:x", "k", "is not a server address"),
        ("http://queue/?a=b", "k", "is not a server address"),
        ("http://que ue", "k", "is not a server address"),
        ("http://queue", "two\r\nlines", "characters that keys never have"),
    ],
)
def test_a_wrong_address_of_a_server_is_refused_without_showing_the_key(where: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        Client(where, key=key)
    assert "lines" not in str(refused.value)
    assert "pw" not in str(refused.value)


def test_other_wrong_addresses_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for where in ("queue", "sqlite:", "amqp://x"):
        with pytest.raises(ConfigError, match=r"is not a queue address; give redis://"):
            Client(where)
    with pytest.raises(ConfigError, match=r"give sqlite:jobs\.db, relative .*, or sqlite:/jobs\.db"):
        Client("sqlite:///jobs.db")
    with pytest.raises(ConfigError, match="key is only for server addresses"):
        Client(key="secret")
    with pytest.raises(ConfigError, match=r"the configuration file 'nope.yaml' does not exist; give redis://"):
        Client("nope.yaml")
    with pytest.raises(TypeError, match=r"where is 3; give redis://"):
        Client(3)  # type: ignore[arg-type]


def test_a_new_database_without_a_configuration_file_is_a_warning_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    database = tmp_path / config_at(None).sqlite.path
    for _ in range(2):
        with Client() as client:
            assert client.size("low") == 0
    assert caplog.messages == [
        f"no configuration file in {tmp_path}: a new database is created, {database.resolve()}; "
        "to use another queue, give its address, app_dir or FILEQ_CONFIG"
    ]
    caplog.clear()
    for directory, text in (tmp_path / "named", "broker: sqlite"), (tmp_path / "given", None):
        directory.mkdir()
        if text is not None:
            (directory / "config.yaml").write_text(text)
        with Client("sqlite:own.db" if text is None else None, app_dir=str(directory)) as client:
            assert client.size("low") == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    configured = tmp_path / "named" / "config.yaml"
    with Client(str(configured)) as client:
        assert client.size("low") == 0
    [message] = caplog.messages
    assert message.startswith(f"sqlite.path of {configured} is relative to the working directory: a new database")
    caplog.clear()
    monkeypatch.setenv("FILEQ_SQLITE_PATH", "chosen.db")
    with Client() as client:
        assert client.size("low") == 0
    assert caplog.messages == []
