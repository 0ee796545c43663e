"""`fileq doctor` names what is wrong around fileq and what to do; a start warns of a server that loses data."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import sqlite3
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fileq.brokers.redis import examine as redis_examine
from fileq.brokers.sqlite import examine as sqlite_examine
from fileq.cli import main
from fileq.commands.doctor import files as files_checks
from tests.integration.test_redis_permissions import PERMISSIONS
from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program, command, environment, run
from tests.support.redis_store import contents
from tests.support.servers import Server

NOBODY = 65534


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


class Doctor:
    """Runs it in this process, for programs, and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.checks: list[dict[str, str]] = []

    def __call__(self, *arguments: str, **settings: object) -> Doctor:
        port = {"observability__metrics_port": 0}
        sets = [f"--set={key.replace('__', '.')}={value}" for key, value in (port | settings).items()]
        self.code = main(["doctor", "--json", *arguments, *sets])
        told: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert told["is_ok"] == (self.code == 0)
        assert all(set(check) == {"name", "status", "detail", "advice"} for check in told["checks"])
        self.checks = told["checks"]
        return self

    def find(self, name: str) -> list[dict[str, str]]:
        return [check for check in self.checks if check["name"] == name]

    def status(self, name: str) -> str:
        return " ".join(check["status"] for check in self.find(name))

    @property
    def wrong(self) -> list[str]:
        return [check["name"] for check in self.checks if check["status"] == "wrong"]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


# the whole of it


def test_all_is_well_on_each_broker_and_each_check_is_a_line(broker_setup: BrokerSetup) -> None:
    if broker_setup.kind == "redis":
        with Redis.from_url(f"redis://{broker_setup.settings['redis.addr']}") as client:
            client.config_set("appendonly", "yes")
    settings = {**broker_setup.settings, "producer.scan_dir": broker_setup.inbox, "observability.metrics_port": 0}
    assert run("enqueue", "--type", "t", cwd=broker_setup.directory, settings=settings).returncode == 0
    ended = run("doctor", cwd=broker_setup.directory, settings=settings)
    assert ended.returncode == 0, ended.stdout
    *lines, empty, summary = ended.stdout.splitlines()
    assert (empty, summary, ended.stderr) == ("", "all is well", "")
    assert all(line.startswith(("✓ ", "– ")) for line in lines)
    assert any(line.startswith(f"✓ broker             {broker_setup.kind}, ") for line in lines)
    assert "\x1b" not in ended.stdout


def test_nothing_is_made_and_what_is_wrong_has_an_advice_and_exit_1(here: Path, doctor: Doctor) -> None:
    (here / "data").rmdir()
    assert doctor().code == 1
    assert doctor.wrong == ["scan_dir", "roots"]
    assert doctor.status("broker") == "unknown"
    assert all(check["advice"] for check in doctor.checks if check["status"] == "wrong")
    assert list(here.iterdir()) == []


def test_a_directory_whose_name_is_no_text_is_shown_all_the_same(here: Path, doctor: Doctor) -> None:
    name = os.fsdecode(b"in-\xff")
    (here / name).mkdir()
    (here / "config.yaml").touch()
    assert doctor(worker__allowed_roots=f"[{here}]", producer__scan_dir=name).code == 0
    assert doctor.find("scan_dir")[0]["detail"].startswith("in-\\udcff")


def on_a_terminal(*arguments: str, cwd: Path, **environ: str) -> str:
    """What the program writes to a terminal of eighty columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    wanted = {**environment(TERM="xterm", **environ)}
    wanted.pop("COLUMNS", None)
    process = subprocess.Popen(
        command(*arguments), cwd=cwd, env=wanted, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # how a terminal says that nobody writes any more
        pass
    os.close(ours)
    process.wait(30)
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_told_otherwise_and_lines_that_fit(here: Path) -> None:
    coloured = on_a_terminal("doctor", cwd=here)
    assert coloured.startswith("\x1b[32m✓\x1b[0m")
    plain = on_a_terminal("doctor", cwd=here, NO_COLOR="1")
    assert "\x1b[3" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", plain)
    assert all(len(line) <= 80 for line in bare.splitlines() if str(here) not in line)  # paths are never broken
    assert "\n                     " in bare


def test_only_what_a_role_needs_is_looked_at(here: Path, doctor: Doctor) -> None:
    names = {role: {check["name"] for check in doctor(role).checks} for role in ("producer", "worker", "all")}
    assert names["producer"] - names["worker"] == {"scan_dir", "watching", "inotify"}
    assert names["worker"] - names["producer"] == {"roots", "handlers"}
    assert names["all"] == names["producer"] | names["worker"]


def test_a_wrong_role_is_one_line_and_exit_2(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "boss"]) == 2
    assert "ROLE is 'boss'; it must be one of producer, worker, all" in capsys.readouterr().err


def test_every_mistake_in_the_configuration_is_a_check_that_failed(here: Path, doctor: Doctor) -> None:
    (here / "config.yaml").write_text("worker: {cuont: 3, timeout: soon}\n")
    assert doctor().code == 1
    assert doctor.wrong == ["configuration", "configuration"]


# the broker


def test_an_unreachable_server_is_wrong_and_the_rest_is_still_looked_at(here: Path, doctor: Doctor) -> None:
    assert doctor(redis__addr="127.0.0.1:1").wrong == ["broker"]
    assert doctor.status("scan_dir") == "ok"


def test_a_server_that_wants_another_password_says_which_setting_to_look_at(
    here: Path, valkey: Server, doctor: Doctor
) -> None:
    valkey.add_user("app", "right", "+@all", "~*")
    doctor(redis__addr=valkey.address, redis__username="app", redis__password="wrong")
    assert doctor.wrong == ["broker"]
    assert doctor.find("broker")[0]["advice"].startswith("check redis.username and redis.password")
    assert "wrong" not in doctor.find("broker")[0]["detail"]


def test_a_server_that_forgets_or_evicts_is_wrong(here: Path, valkey: Server, doctor: Doctor) -> None:
    client = valkey.client()
    doctor(redis__addr=valkey.address)
    assert doctor.wrong == ["persistence"]
    assert "appendonly yes" in doctor.find("persistence")[0]["advice"]
    client.config_set("save", "3600 1")
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "volatile-lru")
    doctor(redis__addr=valkey.address)
    assert doctor.wrong == ["eviction"]
    assert "snapshots only" in doctor.find("persistence")[0]["detail"]
    client.config_set("maxmemory-policy", "noeviction")
    assert doctor(redis__addr=valkey.address).code == 0


def test_looking_at_the_rights_changes_nothing(here: Path, valkey: Server, doctor: Doctor) -> None:
    assert doctor(redis__addr=valkey.address).status("rights") == "ok"
    assert contents(valkey.client()) == {}


def test_what_a_user_may_not_ask_is_unknown_and_not_wrong(here: Path, valkey: Server, doctor: Doctor) -> None:
    valkey.add_user("fileq", "pass", *PERMISSIONS)
    assert doctor(redis__addr=valkey.address, redis__username="fileq", redis__password="pass").code == 0
    assert [doctor.status(name) for name in ("version", "eviction", "persistence")] == ["unknown"] * 3
    assert [doctor.status(name) for name in ("broker", "clock", "rights")] == ["ok"] * 3


@pytest.mark.parametrize(
    ("right", "verb"),
    [("llen", "read"), ("hget", "enqueue"), ("rpoplpush", "claim"), ("rpop", "complete"), ("rpush", "release")],
)
def test_a_right_that_is_missing_is_named_with_what_it_is_for(
    right: str, verb: str, here: Path, valkey: Server, doctor: Doctor
) -> None:
    valkey.add_user("fileq", "pass", *PERMISSIONS, f"-{right}")
    doctor(redis__addr=valkey.address, redis__username="fileq", redis__password="pass")
    assert doctor.wrong == ["rights"]
    detail = doctor.find("rights")[0]["detail"]
    assert detail.startswith(f"can't {verb}: ")
    assert right.upper() in detail.upper()


@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
def test_the_server_in_charge_is_the_one_that_is_looked_at(
    topology: str, here: Path, doctor: Doctor, request: pytest.FixtureRequest
) -> None:
    servers = request.getfixturevalue(topology)
    doctor(redis__url=servers.url, redis__prefix="{jobqueue}")
    assert doctor.wrong == ["persistence"]
    assert [doctor.status(name) for name in ("version", "eviction", "clock", "rights")] == ["ok"] * 4


@pytest.mark.parametrize(("ahead_s", "words"), [(-60.0, "ahead of"), (60.0, "behind")])
def test_clocks_that_disagree_are_wrong(
    ahead_s: float, words: str, here: Path, valkey: Server, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.client().config_set("save", "3600 1")
    real = time.time

    class Clock:
        time = staticmethod(lambda: real() + ahead_s)

    monkeypatch.setattr(redis_examine, "time", Clock)
    assert doctor(redis__addr=valkey.address).wrong == ["clock"]
    assert f"s {words} this machine" in doctor.find("clock")[0]["detail"]


def test_a_replica_takes_no_jobs(here: Path, valkey: Server, doctor: Doctor) -> None:
    client = valkey.client()
    client.config_set("save", "3600 1")
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        doctor(redis__addr=valkey.address)
        assert doctor.wrong == ["role", "rights"]
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_database_of_another_program_or_a_full_disk_is_wrong(
    here: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_examine, "LEAST_FREE_BYTES", 1 << 62)
    assert doctor().wrong == ["disk space"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    (here / "fileq.db").write_bytes(b"not a database, and long enough to be sure of it" * 50)
    assert doctor().wrong == ["broker"]
    assert doctor(sqlite__path="none/fileq.db").wrong == ["database directory"]


def test_the_schema_of_a_database_is_told(here: Path, doctor: Doctor) -> None:
    assert main(["enqueue", "--type", "t"]) == 0
    doctor._capsys.readouterr()
    assert doctor().status("schema") == "ok"


def test_a_database_of_an_older_schema_is_told_and_not_migrated(here: Path, doctor: Doctor) -> None:
    assert main(["enqueue", "--type", "t"]) == 0
    doctor._capsys.readouterr()
    with contextlib.closing(sqlite3.connect(here / "fileq.db")) as connection:
        connection.execute("PRAGMA user_version = 1")
        assert doctor().code == 0
        assert doctor.status("schema") == "unknown"
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1


# a start


def test_a_start_warns_of_a_server_that_forgets_and_no_other(valkey: Server, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    settings = {"redis.addr": valkey.address}
    with Program("producer", cwd=tmp_path, settings=settings) as program:
        warning = program.wait_for("broker.unsafe")
        assert (warning["level"], warning["check"]) == ("warning", "persistence")
        assert "appendonly yes" in warning["action"]
    valkey.client().config_set("appendonly", "yes")
    with Program("producer", cwd=tmp_path, settings=settings) as program:
        assert program.events("broker.unsafe") == []


# files


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Where another user may look; pytest's own directories are closed to others."""
    with tempfile.TemporaryDirectory(prefix="fileq-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def nobody(doctor: Doctor, open_to_all: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the rights of root, to whom nothing is closed."""
    monkeypatch.chdir(open_to_all)
    (open_to_all / "data").mkdir()
    (open_to_all / "db").mkdir()
    (open_to_all / "db").chmod(0o777)
    doctor()  # imports all it needs while it may
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def as_root(path: Path, mode: int) -> None:
    """Changed by its owner, whoever we are at the moment."""
    before = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(mode)
    os.seteuid(before)


def test_directories_that_cannot_be_read_or_written_are_wrong(nobody: None, open_to_all: Path, doctor: Doctor) -> None:
    data, place = open_to_all / "data", {"sqlite__path": "db/fileq.db"}
    as_root(data, 0o000)
    assert doctor(**place).wrong == ["scan_dir", "roots"]
    as_root(data, 0o555)
    assert doctor(**place).wrong == []
    assert doctor(worker__after__completed="delete", **place).wrong == ["after"]
    as_root(open_to_all / "db", 0o555)
    assert doctor(**place).wrong == ["database directory"]
    as_root(data, 0o755)


def test_a_directory_deep_below_that_cannot_be_read_is_named(nobody: None, open_to_all: Path, doctor: Doctor) -> None:
    before = os.geteuid()
    os.seteuid(os.getuid())
    deep = open_to_all / "data" / "a" / "b"
    deep.mkdir(parents=True)
    deep.chmod(0o000)
    os.seteuid(before)
    assert doctor(sqlite__path="db/fileq.db").wrong == ["scan_dir"]
    assert "data/a/b" in doctor.find("scan_dir")[0]["detail"]
    as_root(deep, 0o755)


@pytest.mark.parametrize(
    ("mode", "words"), [("auto", "by events"), ("events", "by events"), ("poll", "by polling"), ("off", "off")]
)
def test_how_files_will_be_found_is_told(mode: str, words: str, here: Path, doctor: Doctor) -> None:
    doctor(producer__watch=mode)
    assert doctor.find("watching")[0]["detail"].startswith(words)
    assert bool(doctor.find("inotify")) == (words == "by events")


def test_more_directories_than_watches_is_wrong(here: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "data" / "more").mkdir()
    monkeypatch.setattr(files_checks, "most_watches", lambda: 1)
    assert doctor().wrong == ["inotify"]
    assert "max_user_watches" in doctor.find("inotify")[0]["advice"]


def test_a_worker_elsewhere_needs_the_mapped_root_and_not_scan_dir(here: Path, doctor: Doctor) -> None:
    mapped = {"producer__scan_dir": "/far/inbox", "worker__path_map": "{/far/inbox: %s}" % (here / "data")}
    assert doctor(**mapped).code == 0
    assert doctor.status("scan_dir") == "unknown"
    (here / "data").rmdir()
    assert doctor(**mapped).wrong == ["roots"]


def test_files_moved_to_where_they_are_found_again_are_a_loop(here: Path, doctor: Doctor) -> None:
    assert doctor(worker__after__completed="move:data/done").wrong == ["after"]
    assert "'done/**'" in doctor.find("after")[0]["advice"]
    assert doctor(worker__after__completed="move:data/done", producer__exclude_globs="[done/**]").code == 0
    assert doctor(worker__after__completed="move:done").code == 0
    (here / "done").touch()
    assert doctor(worker__after__completed="move:done/today").wrong == ["after"]


# what runs


def test_handlers_that_do_not_import_and_programs_that_are_not_there_are_wrong(here: Path, doctor: Doctor) -> None:
    routes = '[{match: "a", use: "nowhere:f"}, {match: "b", command: [no-such-program]}, {match: "c", command: [cat]}]'
    assert doctor(handlers=routes).wrong == ["handlers", "handlers"]
    (here / "lib").mkdir()
    (here / "lib" / "mine.py").write_text("print('noise')\ndef f(job, context): ...\n")
    assert doctor("--app-dir", "lib", handlers='[{match: "a", use: "mine:f"}]').code == 0
    assert "mine:f" in doctor.find("handlers")[0]["detail"]


def test_a_port_that_is_taken_is_wrong_if_it_was_chosen(here: Path, doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = {"observability__metrics_bind": "127.0.0.1", "observability__metrics_port": port}
        assert doctor(**chosen).wrong == ["metrics port"]
    assert doctor(**chosen).status("metrics port") == "ok"


def test_a_port_on_which_fileq_itself_serves_is_well(here: Path, doctor: Doctor) -> None:
    with Program("producer", cwd=here) as program:
        chosen = {"observability__metrics_bind": "127.0.0.1", "observability__metrics_port": program.port}
        assert doctor(**chosen).code == 0
        assert "a fileq that runs here" in doctor.find("metrics port")[0]["detail"]
