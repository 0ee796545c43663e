"""`fileq start` with its web pages, for a browser: an empty directory, handlers that fail until a test repairs them,
and the link that the program prints."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.api_client import ApiClient
from tests.support.program import command, environment
from tests.support.waiting import wait_until

HANDLERS = """
import os
import time
import fileq

HERE = os.path.dirname(__file__)


def is_repaired():
    return os.path.exists(os.path.join(HERE, "repaired"))


@fileq.handler("**/*.pdf")
def read_pages(job, context):
    if not is_repaired():
        raise ValueError(f"page 3 of {job.filepath} can't be read")
    return {"pages": 12}


@fileq.handler("**/*.csv")
def import_rows(job, context):
    if not is_repaired():
        raise KeyError("customer_id")
    return {"rows": 100}


@fileq.handler("**/*.txt")
def count_words(job, context):
    return {"words": 3}


@fileq.handler(type="slow")
def slow(job, context):
    context.cancelled.wait(120)


@fileq.handler(type="audit")
def audit(job, context):
    if not is_repaired():
        raise ValueError("the books differ")


@fileq.handler(type="report")
def report(job, context):
    return "reported"
"""


class ConsoleProgram:
    """`link` logs in once. `inbox` is watched."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self.directory = directory
        self.inbox = directory / "in"
        self.inbox.mkdir()
        (directory / "handlers.py").write_text(HANDLERS)
        given = {
            "imports": "[handlers]",
            "server.port": 0,
            "server.upload_dir": str(self.inbox),
            "server.files": "preview",
            "producer.settle_unclosed": "0s",
            "worker.count": 2,
            "worker.max_retries": 0,
            "circuit_breaker.enabled": "false",
            "observability.metrics_port": 0,
            "observability.metrics_bind": "127.0.0.1",
            **settings,
        }
        self._lines: list[str] = []
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command("start", "in", settings=given),
                cwd=directory,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.link = wait_until(self._link, 60, "the link to log in")
        self.base = self.link.partition("/login")[0]
        self.port = int(self.base.rpartition(":")[2])

    def repair(self) -> None:
        """From now on no handler fails."""
        (self.directory / "repaired").touch()

    def drop(self, *names: str) -> None:
        """Puts files into the watched directory, each complete from the first moment."""
        for name in names:
            draft = self.directory / "draft"
            draft.write_text("x")
            draft.rename(self.inbox / name)

    def client(self, key: str) -> ApiClient:
        return ApiClient(self.port, key)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.append(line)

    def _link(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the program ended:\n{(self.directory / 'log').read_text()}")
        found = [line.split()[-1] for line in list(self._lines) if "once=" in line]
        return found[0] if found else None


@contextmanager
def console_program(directory: Path, settings: Mapping[str, object] | None = None) -> Iterator[ConsoleProgram]:
    program = ConsoleProgram(directory, settings or {})
    try:
        yield program
    finally:
        program.close()
        print((directory / "log").read_text()[-4000:])  # pytest shows it if a test failed
