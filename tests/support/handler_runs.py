"""Tasks for tests of handlers: files in a root, routes from a few lines of code, one run."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fileq.config import config_from
from fileq.core.job import Job, encode, file_job, typed_job
from fileq.handlers import registry
from fileq.handlers.registry import Registration
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran, Task

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def routes_of(*handlers: Any, **worker: Any) -> Routes:
    """One route for each: a function, or the keys of a route."""
    fresh = registry.Registry()
    for number, function in enumerate(handler for handler in handlers if callable(handler)):
        fresh.add(Registration(function, f"**/*{'?' * number}", None, {}))
    keys = [handler for handler in handlers if not callable(handler)]
    before, registry.REGISTRY = registry.REGISTRY, fresh
    try:
        return Routes.load(config_from({"handlers": keys, "worker": worker}), app_dir="")
    finally:
        registry.REGISTRY = before


def file_task(path: bytes | Path, root: Path, *, signature: str | None = None, **changes: Any) -> Task:
    where = os.fsencode(path)
    job = file_job(where, size=0, priority="low", now=NOW, signature=signature, id="j1")
    return task_of(job, path=where, roots=(os.fsencode(root),), **changes)


def typed_task(type: str, payload: Any = None, **changes: Any) -> Task:
    return task_of(typed_job(type, payload, priority="low", now=NOW, id="j1"), **changes)


def task_of(job: Job, **changes: Any) -> Task:
    values = {"route": 0, "path": b"", "roots": (), "attempt": 1, "timeout_s": 30.0, **changes}
    return Task(key="k", raw=encode(job), **values)


def run(task: Task, *handlers: Any, cancelled: threading.Event | None = None, **worker: Any) -> Ran:
    routes = routes_of(*handlers, **worker)
    try:
        return run_task(task, routes, cancelled or threading.Event())
    finally:
        routes.loop.close()
