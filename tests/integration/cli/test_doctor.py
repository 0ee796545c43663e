"""`fileq doctor` names problems of the environment and what to do about them."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from fileq.cli import main
from fileq.commands import environment_checks
from tests.support.doctor import Doctor
from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program, command, environment, run

UNPRIVILEGED_UID = 65534


def test_a_healthy_system_has_no_problem_and_one_line_for_each_check(broker_setup: BrokerSetup) -> None:
    if broker_setup.kind == "redis":
        with Redis.from_url(f"redis://{broker_setup.settings['redis.addr']}") as client:
            client.config_set("appendonly", "yes")
    settings = {**broker_setup.settings, "producer.scan_dir": broker_setup.inbox, "observability.metrics_port": 0}
    assert run("enqueue", "--type", "t", cwd=broker_setup.directory, settings=settings).returncode == 0
    ended = run("doctor", cwd=broker_setup.directory, settings=settings)
    assert ended.returncode == 0, ended.stdout
    *lines, empty, summary = ended.stdout.splitlines()
    assert (empty, summary, ended.stderr) == ("", "no problems found", "")
    assert all(line.startswith(("✓ ", "– ")) for line in lines)
    assert any(line.startswith(f"✓ broker             {broker_setup.kind}, ") for line in lines)
    assert "\x1b" not in ended.stdout


def test_a_problem_has_an_advice_and_exit_1_and_nothing_is_created(cwd: Path, doctor: Doctor) -> None:
    (cwd / "data").rmdir()
    assert doctor().code == 1
    assert doctor.wrong == ["scan_dir"]
    assert doctor.status("roots") == "unknown", "no setting names a root: there may be no jobs with files"
    assert doctor.status("broker") == "unknown"
    assert doctor(producer__scan_dir="data").wrong == ["scan_dir", "roots"]
    assert all(check["advice"] for check in doctor.checks if check["status"] == "wrong")
    assert list(cwd.iterdir()) == []


def test_an_application_that_has_only_tasks_needs_no_scan_dir(cwd: Path, doctor: Doctor) -> None:
    (cwd / "data").rmdir()
    (cwd / "only_tasks.py").write_text("import fileq\n\n@fileq.task()\ndef clean(job, context): ...\n")
    tasks = {"imports": "[only_tasks]", "handlers": "[]"}
    assert doctor(**tasks).code == 0
    [found] = doctor.find("scan_dir")
    assert found["status"] == "unknown"
    assert found["detail"] == "./data does not exist; only a producer needs it, and no handler takes files"
    assert doctor("producer", **tasks).wrong == ["scan_dir"], "it can't start"
    assert doctor(**tasks, producer__scan_dir="data").wrong == ["scan_dir", "roots"], "a setting names it"
    assert doctor(imports="[only_tasks]", handlers="[{match: '*.pdf', command: [cat]}]").wrong == ["scan_dir"]


def test_without_a_file_it_is_said_whether_settings_are_given(cwd: Path, doctor: Doctor) -> None:
    def checked(*sets: str) -> str:
        return run("config", "check", *sets, cwd=cwd).stdout

    assert checked().startswith("ok: no file, all defaults; broker ")
    assert checked("--set", "worker.count=2").startswith("ok: no file; settings from --set or the environment; broker ")
    doctor(worker__count=2)
    assert doctor.find("configuration")[0]["detail"] == "no file; settings from --set or the environment"


def test_a_directory_with_an_undecodable_name_is_shown(cwd: Path, doctor: Doctor) -> None:
    name = os.fsdecode(b"in-\xff")
    (cwd / name).mkdir()
    (cwd / "config.yaml").touch()
    assert doctor(worker__allowed_roots=f"[{cwd}]", producer__scan_dir=name).code == 0
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
    except OSError:  # a terminal reports the end of output so
        pass
    os.close(ours)
    process.wait(30)
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_no_color_is_set_and_lines_that_fit(cwd: Path) -> None:
    coloured = on_a_terminal("doctor", cwd=cwd)
    assert coloured.startswith("\x1b[32m✓\x1b[0m")
    plain = on_a_terminal("doctor", cwd=cwd, NO_COLOR="1")
    assert "\x1b[3" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", plain)
    assert all(len(line) <= 80 for line in bare.splitlines() if str(cwd) not in line)  # paths are never broken
    assert "\n                     " in bare


def test_only_what_a_role_needs_is_checked(cwd: Path, doctor: Doctor) -> None:
    names = {role: {check["name"] for check in doctor(role).checks} for role in ("producer", "worker", "all")}
    assert names["producer"] - names["worker"] == {"scan_dir", "watching", "inotify"}
    assert names["worker"] - names["producer"] == {"roots", "handlers"}
    assert names["all"] == names["producer"] | names["worker"]


def test_a_wrong_role_is_one_line_and_exit_2(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "boss"]) == 2
    assert "ROLE is 'boss'; it must be one of producer, worker, all" in capsys.readouterr().err


def test_every_error_in_the_configuration_is_a_problem(cwd: Path, doctor: Doctor) -> None:
    (cwd / "config.yaml").write_text("worker: {cuont: 3, timeout: soon}\n")
    assert doctor().code == 1
    assert doctor.wrong == ["configuration", "configuration"]


# files


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory that other users can read; pytest's own directories are not."""
    with tempfile.TemporaryDirectory(prefix="fileq-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def unprivileged(doctor: Doctor, shared_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drops the permissions of root, who can read everything."""
    monkeypatch.chdir(shared_directory)
    (shared_directory / "data").mkdir()
    (shared_directory / "db").mkdir()
    (shared_directory / "db").chmod(0o777)
    doctor()  # imports all it needs while it is root
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(UNPRIVILEGED_UID)
    yield
    os.seteuid(0)


def as_root(path: Path, mode: int) -> None:
    """Changes the mode as the owner of the path, also while the effective user is another."""
    before = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(mode)
    os.seteuid(before)


def test_directories_that_cannot_be_read_or_written_are_a_problem(
    unprivileged: None, shared_directory: Path, doctor: Doctor
) -> None:
    data, database = shared_directory / "data", {"sqlite__path": "db/fileq.db"}
    as_root(data, 0o000)
    assert doctor(producer__scan_dir="data", **database).wrong == ["scan_dir", "roots"]
    for name in ("scan_dir", "roots"):
        assert f"this user has no permission on {data}" in doctor.find(name)[0]["detail"]
    as_root(data, 0o555)
    assert doctor(**database).wrong == []
    assert doctor(worker__after__completed="delete", **database).wrong == ["after"]
    as_root(shared_directory / "db", 0o555)
    assert doctor(**database).wrong == ["database directory"]
    as_root(data, 0o755)


def test_a_directory_deep_below_that_cannot_be_read_is_named(
    unprivileged: None, shared_directory: Path, doctor: Doctor
) -> None:
    before = os.geteuid()
    os.seteuid(os.getuid())
    deep = shared_directory / "data" / "a" / "b"
    deep.mkdir(parents=True)
    deep.chmod(0o000)
    os.seteuid(before)
    assert doctor(sqlite__path="db/fileq.db").wrong == ["scan_dir"]
    assert doctor.find("scan_dir")[0]["detail"].startswith("1 directory below ./data can't be read, such as ")
    assert "data/a/b" in doctor.find("scan_dir")[0]["detail"]
    as_root(deep, 0o755)


@pytest.mark.parametrize(
    ("mode", "words"), [("auto", "by events"), ("events", "by events"), ("poll", "by polling"), ("off", "off")]
)
def test_how_files_are_watched_is_reported(mode: str, words: str, cwd: Path, doctor: Doctor) -> None:
    doctor(producer__watch=mode)
    assert doctor.find("watching")[0]["detail"].startswith(words)
    assert bool(doctor.find("inotify")) == (words == "by events")


def test_more_directories_than_watches_is_a_problem(cwd: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / "data" / "more").mkdir()
    monkeypatch.setattr(environment_checks, "max_watches", lambda: 1)
    assert doctor().wrong == ["inotify"]
    assert "max_user_watches" in doctor.find("inotify")[0]["advice"]


def test_files_that_globs_miss_by_their_case_are_named_and_are_no_problem(cwd: Path, doctor: Doctor) -> None:
    (cwd / "data/A.PDF").touch()
    assert doctor(producer__include_globs="['**/*.pdf']").code == 0
    (found,) = doctor.find("globs")
    assert (found["status"], "misses" in found["detail"], "add '**/*.PDF'" in found["detail"]) == (
        "unknown",
        True,
        True,
    )
    assert doctor("worker", producer__include_globs="['**/*.pdf']").find("globs") == []


def test_a_worker_on_another_machine_needs_the_mapped_root_and_not_scan_dir(cwd: Path, doctor: Doctor) -> None:
    mapped = {"producer__scan_dir": "/far/inbox", "worker__path_map": "{/far/inbox: %s}" % (cwd / "data")}
    assert doctor(**mapped).code == 0
    assert doctor.status("scan_dir") == "unknown"
    (cwd / "data").rmdir()
    assert doctor(**mapped).wrong == ["roots"]


def test_moving_files_below_scan_dir_is_sound_and_into_what_is_no_directory_a_problem(
    cwd: Path, doctor: Doctor
) -> None:
    assert doctor(worker__after__completed="move:data/done").code == 0
    assert "the producer does not scan" in doctor.find("after")[0]["detail"]
    assert doctor(worker__after__completed="move:done").code == 0
    assert "scan" not in doctor.find("after")[0]["detail"]
    (cwd / "done").touch()
    assert doctor(worker__after__completed="move:done/today").wrong == ["after"]


# handlers and port


def test_handlers_that_fail_to_import_and_missing_programs_are_a_problem(cwd: Path, doctor: Doctor) -> None:
    routes = '[{match: "a", use: "nowhere:f"}, {match: "b", command: [no-such-program]}, {match: "c", command: [cat]}]'
    assert doctor(handlers=routes).wrong == ["handlers", "handlers"]
    (cwd / "lib").mkdir()
    (cwd / "lib" / "mine.py").write_text("print('noise')\ndef f(job, context): ...\n")
    assert doctor("--app-dir", "lib", handlers='[{match: "a", use: "mine:f"}]').code == 0
    assert "mine:f" in doctor.find("handlers")[0]["detail"]


def test_a_port_in_use_is_a_problem_if_it_was_configured(cwd: Path, doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = {"observability__metrics_bind": "127.0.0.1", "observability__metrics_port": port}
        assert doctor(**chosen).wrong == ["metrics port"]
    assert doctor(**chosen).status("metrics port") == "ok"


def test_a_port_that_a_running_fileq_serves_is_not_a_problem(cwd: Path, doctor: Doctor) -> None:
    with Program("producer", cwd=cwd) as program:
        chosen = {"observability__metrics_bind": "127.0.0.1", "observability__metrics_port": program.port}
        assert doctor(**chosen).code == 0
        assert "served by a running fileq" in doctor.find("metrics port")[0]["detail"]


def test_routes_that_match_less_than_they_seem_to_are_a_note(cwd: Path, doctor: Doctor) -> None:
    report = doctor(handlers='[{match: "*.pdf", use: "fileq.handlers:checksum"}]')
    assert report.code == 0
    notes = [found["detail"] for found in doctor.find("handlers") if found["status"] == "unknown"]
    assert ["of the top level" in notes[0], "no route matches every file" in notes[1]] == [True, True]
