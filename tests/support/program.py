"""The real program under test: started by its command line, observed by its logs and endpoints, ended by signals."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_until
from tests.support.warm_programs import LAUNCHER, WarmProcess

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


def command(*arguments: str, settings: Mapping[str, object] | None = None) -> list[str]:
    """The command line; each setting, by its dotted key, becomes a --set."""
    return [sys.executable, "-W", "error", "-m", "fileq", *words(*arguments, settings=settings)]


def words(*arguments: str, settings: Mapping[str, object] | None = None) -> list[str]:
    """The arguments of the program, with its settings."""
    return [*arguments, *(word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}"))]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without the variables that configure fileq."""
    prefixes = ("FILEQ_", "REDIS_", "WORKER_", "PRODUCER_", "OBSERVABILITY_", "SQLITE_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**clean, "PYTHONPATH": str(REPOSITORY), **more}


def run(
    *arguments: str, cwd: Path, settings: Mapping[str, object] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Runs the program and waits for its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start_warm(*arguments, cwd=cwd, settings=settings, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def start_warm(
    *arguments: str, cwd: Path, settings: Mapping[str, object] | None, stdout: int, stderr: int
) -> WarmProcess:
    return LAUNCHER.start(
        words(*arguments, settings=settings), cwd=cwd, environment=environment(), stdout=stdout, stderr=stderr
    )


class Program:
    """One process of the program. Its logs are JSON; any other output on stderr fails the test that reads them.

    By default its endpoints listen on a free port. A setting that is None is left out."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        settings: Mapping[str, object] | None = None,
        wait: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.arguments = arguments
        self.cwd = cwd
        quiet = {"observability.metrics_port": 0, "observability.metrics_bind": "127.0.0.1"}
        self.settings = {key: value for key, value in (quiet | dict(settings or {})).items() if value is not None}
        self.log_file = cwd / f"program-{os.urandom(4).hex()}.log"
        self._port: int | None = None
        with self.log_file.open("wb") as log:
            self.process = self._start(log.fileno(), variables or {})
        if wait:
            try:
                self.wait_for("role.started", START_TIMEOUT_S)
            except BaseException:
                self.kill()
                raise

    def _start(self, log: int, variables: Mapping[str, str]) -> WarmProcess | subprocess.Popen[bytes]:
        if not variables:
            return start_warm(*self.arguments, cwd=self.cwd, settings=self.settings, stdout=log, stderr=log)
        return subprocess.Popen(
            command(*self.arguments, settings=self.settings),
            cwd=self.cwd,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        print(f"--- log of {' '.join(self.arguments)}\n{self.text()[-4000:]}")  # pytest shows it if the test failed

    # logs and endpoints

    def text(self) -> str:
        return self.log_file.read_text(errors="replace")

    def logs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().split("\n")[:-1]]  # the last line may be incomplete

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.logs() if line["event"] == name]

    def wait_for(self, name: str, timeout_s: float = 20.0, count: int = 1) -> dict[str, Any]:
        """Waits for the count-th event of that name and returns it."""

        def arrived() -> dict[str, Any] | None:
            events = self.events(name) if name in self.text() else []
            if len(events) < count and self.process.poll() is not None:
                raise AssertionError(
                    f"the program ended with {self.process.returncode} before {name!r}:\n{self.text()}"
                )
            return events[count - 1] if len(events) >= count else None

        try:
            found = wait_until(arrived, timeout_s, f"{name!r} in its log")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.text()[-4000:]}") from None
        assert found is not None
        return found

    @property
    def port(self) -> int:
        if self._port is None:
            self._port = int(self.wait_for("http.opened")["port"])
        return self._port

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def readiness(self) -> tuple[int, Any]:
        code, body = self.get("/readyz")
        return code, json.loads(body)

    def metric(self, name: str) -> float:
        """The value of one series, such as `producer_files_skipped_total{reason="excluded"}`; 0 if there is none."""
        for line in self.get("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series == name:
                return float(value)
        return 0.0

    # signals

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Sends SIGKILL to the program and its child processes; may be called twice."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its exit code is still on its way
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)
