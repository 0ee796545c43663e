"""A misspelt FILEQ_ variable is reported by every role that starts, before the broker is opened."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.program import command, environment


def run_with(variables: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize("role", ["producer", "worker", "all"])
def test_a_role_warns_once_before_it_opens_the_broker(tmp_path: Path, role: str) -> None:
    variables = {"FILEQ_REDIS_ADRESS": "redis:6379", "FILEQ_REDIS_SERVICE_HOST": "10.0.0.1"}
    ended = run_with(variables, role, ".", "--once", cwd=tmp_path)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    events = [line["event"] for line in lines]
    [warned] = [line for line in lines if line["event"] == "variable.ignored"]
    assert (warned["level"], warned["variable"]) == ("warning", "FILEQ_REDIS_ADRESS")
    assert warned["action"] == "it names no setting; did you mean FILEQ_REDIS_ADDR?"
    assert events.index("variable.ignored") < events.index("broker.opened")


def test_config_check_names_the_similar_variable(tmp_path: Path) -> None:
    ended = run_with({"FILEQ_WORKER_CUONT": "3", "FILEQ_SITE": "x"}, "config", "check", cwd=tmp_path)
    assert "FILEQ_WORKER_CUONT matches no setting; did you mean FILEQ_WORKER_COUNT?\n" in ended.stdout
    assert "FILEQ_SITE matches no setting\n" in ended.stdout
