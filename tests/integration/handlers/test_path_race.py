"""Another program replaces a file, or its directory, by a link to a secret, over and over, while handlers read it.

No handler ever reads the secret: it gets the file that was checked, or it does not run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fileq.config import config_from
from fileq.core.outcome import Done, Failed, TaskOutcome
from fileq.handlers import registry
from fileq.handlers.run import run_task
from fileq.runtime.handlers_program import handlers_program
from fileq.worker.executors.process.executor import ProcessExecutor
from tests.support.executor_driver import ExecutorDriver
from tests.support.handler_runs import file_task, routes_of

HANDLER = """
def read(job, context):
    with job.open() as file:
        return file.read().decode()
"""
ROUTES = {
    "function": {"match": "**/*", "use": "racing_app:read"},
    "command": {"match": "**/*", "command": ["cat", "{filepath}"], "safe_open": True},
}


SWAP = """
import os, sys
target, link_to = sys.argv[1:]
aside, link = target + ".aside", target + ".link"
os.symlink(link_to, link)
while True:
    os.rename(target, aside)
    os.rename(link, target)
    os.rename(target, link)
    os.rename(aside, target)
"""


@pytest.fixture(params=["file", "directory"])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The path of a file below tmp_path/root whose last or last but one name is swapped."""
    inside, outside = tmp_path / "root" / "sub", tmp_path / "outside"
    for directory, content in ((inside, "public"), (outside, "secret")):
        directory.mkdir(parents=True)
        (directory / "a").write_text(content)
    is_file = request.param == "file"
    swapped = (inside / "a", outside / "a") if is_file else (inside, outside)
    attacker = subprocess.Popen([sys.executable, "-S", "-c", SWAP, *map(str, swapped)])
    yield inside / "a"
    attacker.kill()
    attacker.wait()


def check(outcomes: Callable[[], list[TaskOutcome]], runs: int) -> None:
    """At least this many attempts, some of which saw the file and some of which saw something else."""
    ended: list[TaskOutcome] = []
    while len(ended) < runs or {type(outcome) for outcome in ended} != {Done, Failed}:
        latest = outcomes()
        assert not [outcome for outcome in latest if isinstance(outcome, Done) and b"secret" in outcome.result]
        ended += latest
    kinds = {outcome.kind for outcome in ended if isinstance(outcome, Failed)}
    assert kinds <= {"OutsideRoots", "FileVanished", "FileNotFoundError", "OSError"}


@pytest.mark.parametrize("route", ROUTES)
def test_a_handler_in_a_child_never_reads_a_file_outside_the_roots(
    route: str, attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "racing_app.py").write_text(HANDLER)
    registry.REGISTRY.reset()
    program = handlers_program(config_from({"handlers": [ROUTES[route]]}), app_dir=str(tmp_path))
    task = file_task(attacked, tmp_path / "root")
    with closing(ProcessExecutor(2, program)) as executor:
        driver = ExecutorDriver(executor)

        def outcomes() -> list[TaskOutcome]:
            names = [driver.submit(task.raw, path=task.path, roots=task.roots) for _ in range(2)]
            return [driver.outcome(name) for name in names]

        check(outcomes, 80)


def test_a_handler_in_a_thread_never_reads_a_file_outside_the_roots(attacked: Path, tmp_path: Path) -> None:
    def read(job: Any, context: Any) -> str:
        with job.open() as file:
            return str(file.read().decode())

    task, routes = file_task(attacked, tmp_path / "root"), routes_of(read)
    check(lambda: [run_task(routes, task, threading.Event())], 1000)
