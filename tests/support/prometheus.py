"""A real Prometheus on a private port that scrapes the given targets every second."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.conftest import require
from tests.support.servers.server import HOST, free_port
from tests.support.servers.watchdog import watchdog
from tests.support.waiting import wait_until

START_TIMEOUT_S = 30.0


class Prometheus:
    """`jobs` maps names to targets; `rules` are files."""

    def __init__(self, directory: Path, jobs: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()) -> None:
        self.directory = directory / "prometheus"
        self.directory.mkdir()
        self.address = f"{HOST}:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": list(targets)}]} for name, targets in jobs.items()
            ],
        }
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        binary = require("prometheus", shutil.which("prometheus"))
        flags = {
            "config.file": self.directory / "prometheus.yml",
            "storage.tsdb.path": self.directory / "data",
            "web.listen-address": self.address,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [binary, *(f"--{name}={value}" for name, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        watchdog.add(self._process.pid, str(self.directory))
        wait_until(self._is_ready, START_TIMEOUT_S, "Prometheus is ready", every_s=0.05)
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)
        watchdog.remove(self._process.pid)
        print(f"--- end of Prometheus's log\n{self._log.read_text()[-2000:]}")

    def ask(self, path: str, **parameters: str) -> Any:
        """Calls the API and returns the data; AssertionError with the reason on failure."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series, now."""
        found = self.ask("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in found["result"]]

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return False
