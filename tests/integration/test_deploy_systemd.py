"""deploy/systemd: the unit is valid, agrees with its configuration and with how fileq stops and reloads."""

from __future__ import annotations

import configparser
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
from tests.support.program import REPOSITORY, Program, run

SYSTEMD = REPOSITORY / "deploy" / "systemd"
STOP_MARGIN_S = 15.0  # docs/production.md: time to stop


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / "fileq.service")
    return parser


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = require("systemd", shutil.which("systemd-analyze"))
    text = (SYSTEMD / "fileq.service").read_text().replace("/opt/fileq/bin/fileq", sys.executable)
    (tmp_path / "fileq.service").write_text(text)  # verify wants the program of ExecStart to exist
    ended = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / "fileq.service"], capture_output=True, text=True, check=False
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
    signal_name = re.fullmatch(r"/bin/kill -(\w+) \$MAINPID", unit["Service"]["ExecReload"])
    assert signal_name is not None
    with Program(*arguments, cwd=tmp_path) as running:
        subprocess.run(["kill", f"-{signal_name[1]}", str(running.process.pid)], check=True)
        running.wait_for("config.reloaded")
        assert running.stop() == 0
