"""The program as users start it: exit codes, one line for each error, and no import before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fileq import __version__
from fileq.config.show import example_yaml
from tests.support.producer_setup import BrokerSetup

ERRORS = "fileq.core.errors"
PUBLIC_NAME = "fileq.core.public_name"
# What the quick commands may import beside Python's own modules. msgspec imports typing_extensions if it can.
LIGHT = {"fileq", "msgspec", "typing_extensions"}
DRIVERS = {"sqlite": {"sqlite3"}, "redis": {"hiredis", "socket", "hashlib", "importlib.resources", "shutil"}}
# Python's own modules that take milliseconds, and parts of fileq that only roles and some commands need.
SLOW = {
    *("asyncio", "concurrent.futures", "ctypes", "email", "http", "logging", "multiprocessing", "ssl", "subprocess"),
    *("dataclasses", "importlib.metadata", "json", "secrets", "sysconfig", "traceback", "unittest", "zoneinfo"),
    *("fileq.observe", "fileq.handlers.builtin", "fileq.handlers.outcomes", "fileq.handlers.routes"),
    *("fileq.producer.producer", "fileq.runtime.roles", "fileq.worker.pump", "fileq.worker.executors.process"),
    *(name for names in DRIVERS.values() for name in names),
}


def fileq(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fileq", *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3]), **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def imported_by(*arguments: str) -> tuple[list[str], set[str]]:
    """What this command prints, and the modules that it imports."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"  # the coverage tool has imported modules already
        "from fileq.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(*set(sys.modules) - before)"
    )
    command = [sys.executable, "-c", code, *arguments]
    shown = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    *lines, modules = shown.stdout.splitlines()
    return lines, set(modules.split())


def test_the_version_is_printed_without_importing_anything_heavy() -> None:
    shown, imported = imported_by("--version")
    assert shown == [f"fileq {__version__}"]
    own = {"fileq", "fileq.cli", "fileq.core", ERRORS, PUBLIC_NAME}
    assert {name for name in imported if name.startswith("fileq")} == own
    assert not {name for name in imported - own if name.partition(".")[0] not in sys.stdlib_module_names | LIGHT}
    assert not imported & {*SLOW, "argparse", "datetime", "msgspec", "re"}


@pytest.mark.parametrize(
    "arguments", [["stats"], ["peek"], ["dlq", "list"], ["enqueue", "--type", "T", "--payload", "{}"]]
)
def test_quick_commands_import_their_own_broker_and_nothing_else_that_is_heavy(
    arguments: list[str], broker_setup: BrokerSetup
) -> None:
    with broker_setup.open():
        pass
    sets = [f"--set={key}={value}" for key, value in broker_setup.settings.items()]
    _, imported = imported_by(*arguments, *sets)
    own = DRIVERS[broker_setup.kind]
    packages = {name.partition(".")[0] for name in imported}
    assert packages - sys.stdlib_module_names - LIGHT - own == set()
    assert imported & SLOW - own == set()


@pytest.mark.parametrize("arguments", [["--role=worker", "--version"], ["--config", "x", "--version"]])
def test_version_works_at_any_position(arguments: list[str], tmp_path: Path) -> None:
    assert fileq(*arguments, cwd=tmp_path).stdout == f"fileq {__version__}\n"


@pytest.mark.parametrize("redirection", ["> /dev/full", "| true", ">&-", ">&- 2>&-"])
def test_closed_or_full_output_gives_no_traceback(redirection: str, tmp_path: Path) -> None:
    line = f"{sys.executable} -X dev -W error -m fileq config list {redirection}"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    if "full" in redirection:
        assert (ended.returncode, ended.stderr) == (1, "fileq: the output can't be written: No space left on device\n")
    else:
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    line = f"cd gone && rmdir ../gone && {sys.executable} -P -m fileq enqueue a"
    ended = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode in (1, 2)
    assert len(ended.stderr.splitlines()) == 1
    assert "No such file or directory" in ended.stderr


def test_a_name_with_a_line_break_is_still_one_line(tmp_path: Path) -> None:
    ended = fileq("stats", "--set", "sqlite.path=a\nb\x1b[31m.db", cwd=tmp_path)
    assert ended.returncode == 4
    assert len(ended.stderr.splitlines()) == 1
    assert "a\\nb\\x1b[31m.db" in ended.stderr


def test_help_says_that_admin_may_be_left_out(tmp_path: Path) -> None:
    lines = fileq("--help", cwd=tmp_path).stdout.splitlines()
    heading = next(line for line in lines if line.startswith("Operations"))
    assert "'admin' is optional: 'fileq stats'" in heading


def test_help_is_also_a_command(tmp_path: Path) -> None:
    assert fileq("help", "config", "set", cwd=tmp_path).stdout == fileq("config", "set", "--help", cwd=tmp_path).stdout
    assert fileq("help", cwd=tmp_path).stdout.startswith("usage: fileq COMMAND")


def test_a_wrong_value_and_two_misspelt_keys_are_three_lines_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("worker: {cuont: 3}\nproducer: {scandir: /data}\n")
    ended = fileq("config", "check", cwd=tmp_path, WORKER_COUNT="abc")
    assert ended.returncode == 2
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 3, ended.stderr
    assert any("'worker.cuont'" in line and "'worker.count'" in line for line in lines)
    assert any("'producer.scandir'" in line and "'producer.scan_dir'" in line for line in lines)
    assert any("WORKER_COUNT is 'abc'" in line for line in lines)


@pytest.mark.parametrize("role", [["--role=worker"], ["--role", "worker"], ["worker"]])
def test_every_spelling_of_a_role_reads_the_configuration(role: list[str], tmp_path: Path) -> None:
    ended = fileq(*role, "--config", "missing.yaml", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "missing.yaml" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("arguments", [["wrker"], ["--frobnicate"], ["config"], ["config", "get"], []])
def test_a_bad_command_line_is_one_line_and_exit_2(arguments: list[str], tmp_path: Path) -> None:
    ended = fileq(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "--help" in ended.stderr


def test_config_list_shows_each_value_and_its_origin_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("redis: {addr: 'r:6379', password: hunter2}\n")
    ended = fileq("config", "list", cwd=tmp_path, FILEQ_WORKER_COUNT="3")
    assert ended.returncode == 0, ended.stderr
    shown = {line.split()[0]: line for line in ended.stdout.splitlines()}
    assert "3  (FILEQ_WORKER_COUNT)" in shown["worker.count"]
    assert "config.yaml:1" in shown["redis.addr"]
    assert "hunter2" not in ended.stdout + ended.stderr


def test_config_get_knows_keys_and_sections_and_suggests(tmp_path: Path) -> None:
    assert fileq("config", "get", "worker.count", cwd=tmp_path).stdout == "16\n"
    assert len(fileq("config", "get", "redis.tls", cwd=tmp_path).stdout.splitlines()) == 4
    wrong = fileq("config", "get", "worker.cout", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'worker.count'" in wrong.stderr


def test_config_init_writes_the_example_once(tmp_path: Path) -> None:
    assert fileq("config", "init", cwd=tmp_path).returncode == 0
    assert (tmp_path / "config.yaml").read_text() == example_yaml()
    again = fileq("config", "init", cwd=tmp_path)
    assert again.returncode == 2
    assert "already exists" in again.stderr


def test_config_init_prints_the_example_for_a_dash(tmp_path: Path) -> None:
    assert fileq("config", "init", "-", cwd=tmp_path).stdout == example_yaml()
    assert not [*tmp_path.iterdir()]


def test_config_check_names_variables_that_have_no_effect(tmp_path: Path) -> None:
    ended = fileq("config", "check", cwd=tmp_path, FILEQ_SERVICE_HOST="10.0.0.1")
    assert ended.returncode == 0
    assert "FILEQ_SERVICE_HOST" in ended.stdout
