"""deploy/systemd: the unit is valid, agrees with its configuration and with how fileq stops and reloads."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fileq.config import load
from fileq.core.units import parse_duration
from tests.conftest import require
from tests.support.program import REPOSITORY, Program, command, environment, run
from tests.support.waiting import wait_until

SYSTEMD = REPOSITORY / "deploy" / "systemd"
STOP_MARGIN_S = 15.0  # docs/production.md: time to stop


def analyze() -> str:
    return require("systemd", shutil.which("systemd-analyze"))


def settings_of(text: str) -> configparser.ConfigParser:
    """A key that is given several times has its values joined by blanks, as systemd does with lists."""
    sections: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section[key] = f"{section[key]} {value}" if key in section else value
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_dict(sections)
    return parser


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    return settings_of((SYSTEMD / "fileq.service").read_text())


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (SYSTEMD / "fileq.service").read_text().replace("/opt/fileq/bin/fileq", sys.executable)
    (tmp_path / "fileq.service").write_text(text)  # verify wants the program of ExecStart to exist
    ended = subprocess.run(
        [analyze(), "verify", "--man=no", tmp_path / "fileq.service"], capture_output=True, text=True, check=False
    )
    complaints = [line for line in ended.stderr.splitlines() if "fileq" in line]
    assert (ended.returncode, complaints) == (0, [])


def test_it_waits_longer_than_a_worker_takes_to_stop(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    config = load(str(SYSTEMD / "config.yaml"), environ={}).config
    assert parse_duration(service["TimeoutStopSec"]) >= config.worker.shutdown_timeout + STOP_MARGIN_S
    assert service["KillMode"] == "mixed"


def test_it_may_write_what_its_configuration_names_and_nothing_else(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    config = load(str(SYSTEMD / "config.yaml"), environ={}).config
    assert service["ProtectSystem"] == "strict"
    assert Path(config.sqlite.path).is_relative_to(Path("/var/lib") / service["StateDirectory"])
    assert Path(config.producer.scan_dir).is_relative_to(service["ReadWritePaths"])


def test_it_starts_again_until_a_late_mount_is_there(unit: configparser.ConfigParser, tmp_path: Path) -> None:
    """A missing scan_dir and a metrics port in use have the code of a wrong configuration."""
    service = unit["Service"]
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("on-failure", "0")
    ended = run("all", "not-mounted", cwd=tmp_path, settings={"broker": "memory"})
    assert "which does not exist" in ended.stderr
    assert ended.returncode == 2
    assert str(ended.returncode) not in service.get("RestartPreventExitStatus", "").split()


def test_its_command_runs_with_its_configuration_and_reloads(unit: configparser.ConfigParser, tmp_path: Path) -> None:
    """As systemd runs it: in the directory of config.yaml, without a terminal; its paths are moved into a directory."""
    text = (SYSTEMD / "config.yaml").read_text()
    for path in ("/srv/fileq", "/var/lib/fileq"):
        assert path in text
        text = text.replace(path, f"{tmp_path}{path}")
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "srv/fileq/inbox").mkdir(parents=True)
    (tmp_path / "var/lib/fileq").mkdir(parents=True)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/fileq/bin/fileq"
    assert arguments[1:] == ["--config", "/etc/fileq/config.yaml", "--app-dir", "/etc/fileq"]
    arguments = [word.replace("/etc/fileq", str(tmp_path)) for word in arguments]
    signal_name = re.fullmatch(r"/bin/kill -(\w+) \$MAINPID", unit["Service"]["ExecReload"])
    assert signal_name is not None
    with Program(*arguments, cwd=tmp_path) as running:
        subprocess.run(["kill", f"-{signal_name[1]}", str(running.process.pid)], check=True)
        running.wait_for("config.reloaded")
        assert running.stop() == 0


# Hardening


@pytest.mark.parametrize("file", sorted(SYSTEMD.glob("*.service")), ids=lambda path: path.name)
def test_the_exposure_of_every_unit_is_below_2_5(file: Path) -> None:
    """systemd exposure below 2.5, as `systemd-analyze security` rates it: 0 is locked in, 10 is open."""
    rated = subprocess.run(
        [analyze(), "security", "--offline=true", "--no-pager", file], capture_output=True, text=True, check=False
    )
    found = re.search(rf"Overall exposure level for {re.escape(file.name)}: (\d+\.\d+)", rated.stdout)
    assert found, rated.stdout + rated.stderr
    assert float(found[1]) < 2.5, rated.stdout


def test_it_may_have_more_files_open_than_a_server_has_connections(unit: configparser.ConfigParser) -> None:
    """H3: fileq raises its soft limit to the hard one; handlers keep the soft one."""
    assert unit["Service"]["LimitNOFILE"] == "1024:65536"


# Loads a filter that answers every other system call with EPERM, as systemd does, and becomes the program.
FILTERED = """
import ctypes, errno, json, os, sys
seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
seccomp.seccomp_init.restype = ctypes.c_void_p
names, program = json.loads(sys.argv[1]), sys.argv[2:]
context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(0x00050000 | errno.EPERM)))
for name in names:
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        assert seccomp.seccomp_rule_add(context, ctypes.c_uint32(0x7FFF0000), number, 0) == 0, name
assert seccomp.seccomp_load(context) == 0
os.execv(program[0], program)
"""
HANDLERS = """
import ctypes, subprocess
import fileq

@fileq.handler("**/*.child")
def child(job, context):
    with job.open() as file:
        return {"n": len(file.read()), "traced": ctypes.CDLL(None).ptrace(0, 0, 0, 0)}

@fileq.handler("**/*.thread", isolation="thread")
def thread(job, context):
    return subprocess.run(["wc", "-c", job.path], capture_output=True, text=True, check=True).stdout
"""


def system_calls(words: list[str]) -> list[str]:
    """The names that a SystemCallFilter= admits, with its sets resolved."""
    said = subprocess.run([analyze(), "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True)
    sets: dict[str, list[str]] = {}
    for line in said.stdout.splitlines():
        word = line.strip().removeprefix("# ")
        if re.fullmatch(r"@[a-z-]+", line):
            members = sets.setdefault(line, [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(word)
    found: list[str] = []
    for word in words:
        found += system_calls_of(word, sets)
    return sorted(set(found))


def system_calls_of(word: str, sets: dict[str, list[str]]) -> list[str]:
    if not word.startswith("@"):
        return [word]
    return [name for member in sets[word] for name in system_calls_of(member, sets)]


def test_jobs_run_with_the_system_calls_that_it_admits_and_no_others(
    unit: configparser.ConfigParser, tmp_path: Path
) -> None:
    """The handlers run in a child, in a thread and as a command, on files that are watched, and one is moved."""
    names = system_calls([*unit["Service"]["SystemCallFilter"].split(), "execve"])
    assert "ptrace" not in names
    assert {"renameat2", "seccomp"} <= set(names)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "work.py").write_text(HANDLERS)
    config = {
        "imports": ["work"],
        "handlers": [{"match": "**/*.command", "command": ["wc", "-c", "{filepath}"]}],
        "producer": {"scan_dir": "inbox", "settle": "50ms", "settle_unclosed": "100ms"},
        "worker": {"max_memory": "512MB", "after": {"completed": "move:done"}},
        "observability": {"metrics_port": 0, "metrics_bind": "127.0.0.1"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    log = tmp_path / "log"
    with log.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, "-c", FILTERED, json.dumps(names), *command("all")],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(lambda: '"role.started"' in log.read_text() or program.poll() is not None, 60, "it has started")
        for kind in ("child", "thread", "command"):
            (tmp_path / "inbox" / f"a.{kind}").write_text("content")
        done = [tmp_path / "done" / f"a.{kind}" for kind in ("child", "thread", "command")]
        wait_until(lambda: all(path.exists() for path in done) or program.poll() is not None, 60, "all are done")
        shown = run("list", "--json", "--match", "*.child", cwd=tmp_path)
        [job] = json.loads(shown.stdout)["jobs"]
        record = json.loads(run("show", job["id"], "--json", cwd=tmp_path).stdout)
        assert record["result"] == {"n": 7, "traced": -1}, "the filter was not loaded"
        program.terminate()
        assert program.wait(60) == 0, log.read_text()
    finally:
        program.kill()
        program.wait()
    assert '"error"' not in log.read_text(), log.read_text()
