"""Runs `fileq doctor` for tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fileq.cli import main


class Doctor:
    """Runs `fileq doctor --json` in this process and keeps its findings."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.checks: list[dict[str, str]] = []

    def __call__(self, *arguments: str, **settings: object) -> Doctor:
        port = {"observability__metrics_port": 0}
        sets = [f"--set={key.replace('__', '.')}={value}" for key, value in (port | settings).items()]
        self.code = main(["doctor", "--json", *arguments, *sets])
        report: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert report["is_ok"] == (self.code == 0)
        assert all(set(check) == {"name", "status", "detail", "advice"} for check in report["checks"])
        self.checks = report["checks"]
        return self

    def drop_output(self) -> None:
        """Drops what was printed so far."""
        self._capsys.readouterr()

    def find(self, name: str) -> list[dict[str, str]]:
        return [check for check in self.checks if check["name"] == name]

    def status(self, name: str) -> str:
        return " ".join(check["status"] for check in self.find(name))

    @property
    def wrong(self) -> list[str]:
        return [check["name"] for check in self.checks if check["status"] == "wrong"]
