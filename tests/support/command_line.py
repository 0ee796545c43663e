"""Runs the command line in this process, on the broker of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fileq.brokers.protocol import FullBroker
from fileq.cli import main
from fileq.config import Config, config_from
from fileq.testing.conformance.harness import nested
from tests.support.sqlite_store import change_one_row
from tests.support.worker_setup import WorkerSetup


class CommandLine:
    """The command line and its broker. The builders of the conformance suite accept it as their harness."""

    def __init__(self, setup: WorkerSetup, capsys: pytest.CaptureFixture[str]) -> None:
        self.setup = setup
        self.directory: Path = setup.directory
        self.broker: FullBroker = setup.broker
        self.settings: dict[str, object] = {"producer.scan_dir": setup.inbox, **setup.settings}
        self.config: Config = config_from(nested(self.settings))
        self._capsys = capsys

    @property
    def sets(self) -> list[str]:
        return [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]

    def run(self, *words: str, code: int = 0) -> str:
        """Returns stdout. Asserts the exit code, and an empty stderr if that is 0."""
        self._capsys.readouterr()
        ended = main([*words, *self.sets])
        out, err = self._capsys.readouterr()
        assert ended == code, (ended, out, err)
        assert "Traceback" not in err
        assert code or not err, err
        return out

    def fail(self, *words: str, code: int) -> str:
        """Returns stderr. Asserts the exit code, and that stderr is one line."""
        self._capsys.readouterr()
        ended = main([*words, *self.sets])
        out, err = self._capsys.readouterr()
        assert ended == code, (ended, out, err)
        assert err.startswith("fileq: "), err
        assert err.count("\n") == 1, err
        return err

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))

    def push(self, queue: str, raw: bytes) -> None:
        self.setup.push(queue, raw)

    def server_client(self) -> Any:
        return self.setup.server_client()

    def execute(self, sql: str, *values: object) -> None:
        """Changes one row of the database, bypassing the SQLite broker."""
        change_one_row(self.broker, sql, *values)
