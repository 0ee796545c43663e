"""For tests of handlers: builds tasks and routes in one line each, runs a task, and unpacks its outcome."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fileq.config import config_from
from fileq.core.job import ClaimKey, Job, encode, file_job, typed_job
from fileq.core.outcome import Done, Failed, Ran, Task
from fileq.handlers.registry import REGISTRY, Registration
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task

NOW = datetime(2026, 11, 16, tzinfo=UTC)


CALLED = Done(b'"called"')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The only root of the tasks that file_task() makes."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def file(root: Path) -> Path:
    (root / "a.txt").write_bytes(b"abc")
    return root / "a.txt"


def called(job: Any, context: Any) -> str:
    """A handler whose outcome is CALLED."""
    return "called"


def routes_of(*handlers: Any, **worker: Any) -> Routes:
    """One route for each handler: a function, or the keys of a route in the configuration."""
    functions = [handler for handler in handlers if callable(handler)]
    keys = [handler for handler in handlers if not callable(handler)]
    before = tuple(REGISTRY)
    REGISTRY.reset(Registration(function, f"**/*{'?' * n}", None, {}) for n, function in enumerate(functions))
    try:
        return Routes.load(config_from({"handlers": keys, "worker": worker}), app_dir="")
    finally:
        REGISTRY.reset(before)


def file_task(path: bytes | Path, root: Path, *, signature: str | None = None, **changes: Any) -> Task:
    where = os.fsencode(path)
    job = file_job(where, size=0, priority="low", now=NOW, signature=signature, id="j1")
    return task_of(job, path=where, roots=(os.fsencode(root),), **changes)


def typed_task(type: str, payload: Any = None, **changes: Any) -> Task:
    return task_of(typed_job(type, payload, priority="low", now=NOW, id="j1"), **changes)


def task_of(job: Job, **changes: Any) -> Task:
    values = {"route": 0, "path": b"", "roots": (), "attempt": 1, "timeout_s": 30.0, **changes}
    return Task(key=ClaimKey("slot", 1), raw=encode(job), **values)


def run(task: Task, *handlers: Any, cancelled: threading.Event | None = None, **worker: Any) -> Ran:
    routes = routes_of(*handlers, **worker)
    try:
        return run_task(routes, task, cancelled or threading.Event())
    finally:
        routes.loop.close()


def command(*arguments: str, **options: Any) -> dict[str, Any]:
    """The keys of a route that runs a command."""
    return {"type": "t", "command": list(arguments), **options}


def python(code: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """The keys of a route whose command runs Python code."""
    return command(sys.executable, "-c", code, *arguments, **options)


def result(outcome: Ran) -> dict[str, Any]:
    assert isinstance(outcome, Done), outcome
    decoded: dict[str, Any] = json.loads(outcome.result)
    return decoded


def failure(outcome: Ran) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome
