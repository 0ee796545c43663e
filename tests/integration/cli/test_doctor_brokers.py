"""`fileq doctor` on the broker; a start warns about a server that loses data."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from fileq.brokers.redis import examine as redis_examine
from fileq.brokers.sqlite import examine as sqlite_examine
from fileq.cli import main
from tests.integration.redis.test_permissions import PERMISSIONS
from tests.support.doctor import Doctor
from tests.support.program import Program
from tests.support.redis_store import contents
from tests.support.servers import Server


def test_an_unreachable_server_is_a_problem_and_the_rest_is_still_checked(cwd: Path, doctor: Doctor) -> None:
    assert doctor(redis__addr="127.0.0.1:1").wrong == ["broker"]
    assert doctor.status("scan_dir") == "ok"


def test_a_wrong_password_names_the_settings_to_check(cwd: Path, valkey: Server, doctor: Doctor) -> None:
    valkey.add_user("app", "right", "+@all", "~*")
    doctor(redis__addr=valkey.address, redis__username="app", redis__password="wrong")
    assert doctor.wrong == ["broker"]
    assert doctor.find("broker")[0]["advice"].startswith("check redis.username and redis.password")
    assert "wrong" not in doctor.find("broker")[0]["detail"]


def test_a_server_that_loses_or_evicts_data_is_a_problem(cwd: Path, valkey: Server, doctor: Doctor) -> None:
    client = valkey.client()
    doctor(redis__addr=valkey.address)
    assert doctor.wrong == ["persistence"]
    assert "appendonly yes" in doctor.find("persistence")[0]["advice"]
    client.config_set("save", "3600 1")
    doctor(redis__addr=valkey.address)
    assert doctor.wrong == ["persistence"]
    assert "a crash loses every job since" in doctor.find("persistence")[0]["detail"]
    assert "appendonly yes" in doctor.find("persistence")[0]["advice"]
    client.config_set("appendonly", "yes")
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "volatile-lru")
    doctor(redis__addr=valkey.address)
    assert doctor.wrong == ["eviction"]
    client.config_set("maxmemory-policy", "noeviction")
    assert doctor(redis__addr=valkey.address).code == 0


def test_checking_the_permissions_changes_nothing(cwd: Path, valkey: Server, doctor: Doctor) -> None:
    assert doctor(redis__addr=valkey.address).status("permissions") == "ok"
    assert contents(valkey.client()) == {}


def test_what_a_user_may_not_read_is_unknown_and_not_a_problem(cwd: Path, valkey: Server, doctor: Doctor) -> None:
    valkey.add_user("fileq", "pass", *PERMISSIONS)
    assert doctor(redis__addr=valkey.address, redis__username="fileq", redis__password="pass").code == 0
    assert [doctor.status(name) for name in ("version", "eviction", "persistence")] == ["unknown"] * 3
    assert [doctor.status(name) for name in ("broker", "clock", "permissions")] == ["ok"] * 3


@pytest.mark.parametrize(
    ("right", "verb"),
    [
        ("llen", "read"),
        ("hget", "enqueue"),
        ("ltrim", "claim"),
        ("rpop", "complete"),
        ("rpush", "release"),
        ("incrby", "limit routes"),
    ],
)
def test_a_missing_permission_is_named_with_the_verb_that_needs_it(
    right: str, verb: str, cwd: Path, valkey: Server, doctor: Doctor
) -> None:
    valkey.add_user("fileq", "pass", *PERMISSIONS, f"-{right}")
    doctor(redis__addr=valkey.address, redis__username="fileq", redis__password="pass")
    assert doctor.wrong == ["permissions"]
    detail = doctor.find("permissions")[0]["detail"]
    assert detail.startswith(f"can't {verb}: ")
    assert right.upper() in detail.upper()


@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
def test_the_primary_server_is_checked(
    topology: str, cwd: Path, doctor: Doctor, request: pytest.FixtureRequest
) -> None:
    servers = request.getfixturevalue(topology)
    doctor(redis__url=servers.url, redis__prefix="{jobqueue}")
    assert doctor.wrong == ["persistence"]
    assert [doctor.status(name) for name in ("version", "eviction", "clock", "permissions")] == ["ok"] * 4


@pytest.mark.parametrize(("ahead_s", "words"), [(-60.0, "ahead of"), (60.0, "behind")])
def test_clocks_that_differ_are_a_problem(
    ahead_s: float, words: str, cwd: Path, valkey: Server, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.client().config_set("appendonly", "yes")
    real = time.time

    class Clock:
        time = staticmethod(lambda: real() + ahead_s)

    monkeypatch.setattr(redis_examine, "time", Clock)
    assert doctor(redis__addr=valkey.address).wrong == ["clock"]
    assert f"s {words} this machine" in doctor.find("clock")[0]["detail"]


def test_a_replica_is_a_problem(cwd: Path, valkey: Server, doctor: Doctor) -> None:
    client = valkey.client()
    client.config_set("appendonly", "yes")
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        doctor(redis__addr=valkey.address)
        assert doctor.wrong == ["role", "permissions"]
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_foreign_database_or_a_full_disk_is_a_problem(
    cwd: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_examine, "LEAST_FREE_BYTES", 1 << 62)
    assert doctor().wrong == ["disk space"]
    monkeypatch.undo()
    monkeypatch.chdir(cwd)
    (cwd / "fileq.db").write_bytes(b"not a database, and long enough to be sure of it" * 50)
    assert doctor().wrong == ["broker"]
    assert doctor(sqlite__path="none/fileq.db").wrong == ["database directory"]


def test_the_schema_of_a_database_is_reported(cwd: Path, doctor: Doctor) -> None:
    assert main(["enqueue", "--type", "t"]) == 0
    doctor.drop_output()
    assert doctor().status("schema") == "ok"


def test_another_schema_is_a_problem_and_is_not_changed(cwd: Path, doctor: Doctor) -> None:
    assert main(["enqueue", "--type", "t"]) == 0
    doctor.drop_output()
    with contextlib.closing(sqlite3.connect(cwd / "fileq.db")) as connection:
        connection.execute("PRAGMA user_version = 77")
        assert doctor().wrong == ["broker"]
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 77


# at the start of a role


def test_a_start_warns_about_a_server_that_loses_data_and_about_no_other(valkey: Server, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    settings = {"redis.addr": valkey.address}
    with Program("producer", cwd=tmp_path, settings=settings) as program:
        warning = program.wait_for("broker.unsafe")
        assert (warning["level"], warning["check"]) == ("warning", "persistence")
        assert "appendonly yes" in warning["action"]
    valkey.client().config_set("appendonly", "yes")
    with Program("producer", cwd=tmp_path, settings=settings) as program:
        assert program.events("broker.unsafe") == []
