"""Runs the handler that a worker would choose for a file, in the foreground: no queue, no retries, no record.

The handler itself and its log lines write to stdout and stderr. Must never open a broker.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct

from fileq.config import Loaded
from fileq.core.claim import ClaimKey
from fileq.core.errors import ConfigError
from fileq.core.job import decode, encode, file_job
from fileq.core.outcome import Failed
from fileq.core.units import format_duration
from fileq.files.paths import Paths
from fileq.handlers.file_check import check_file
from fileq.handlers.outcomes import CommandFailed, TimedOut, done, failed
from fileq.handlers.routes import Routes
from fileq.handlers.run import invoke
from fileq.handlers.task import Task
from fileq.runtime.observers import log_to_stderr

_FILEQ = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Trial(Struct, frozen=True):
    """How one run ended. `failure` is empty if it succeeded; else the error and what a worker would do next."""

    took: str
    result: bytes = b""  # JSON
    warning: str = ""
    failure: str = ""
    traceback: str = ""


def try_path(loaded: Loaded, path: str, app_dir: str, announce: Callable[[str], None]) -> Trial:
    """Announces the route, then runs the handler. ConfigError if no handler matches the file."""
    config = loaded.config
    log_to_stderr(config)
    routes = Routes.load(config, app_dir=app_dir)
    try:
        return _try(routes, _task(routes, config.paths, path), announce)
    finally:
        routes.loop.close()


def _task(routes: Routes, paths: Paths, path: str) -> Task:
    where = os.path.abspath(os.fsencode(path))
    try:
        size = os.stat(where).st_size
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path!r} can't be read: {getattr(error, 'strerror', None) or error}") from error
    job = file_job(where, size=size, priority="low", now=datetime.now(UTC))
    number = routes.find(job, paths.relative(where))
    refused = check_file(where, paths.roots)
    if isinstance(refused, Failed):
        advice = "; add one to worker.allowed_roots" if refused.kind == "OutsideRoots" else f": {path}"
        raise ConfigError(refused.error + advice)
    if number is None:
        raise ConfigError(routes.refusal(job))
    timeout_s = routes[number].timeout
    return Task(ClaimKey("try", 0), encode(job), number, where, paths.roots, attempt=1, timeout_s=timeout_s)


def _try(routes: Routes, task: Task, announce: Callable[[str], None]) -> Trial:
    route = routes[task.route]
    announce(f"{route} (timeout {format_duration(route.timeout)})")
    started_s = time.perf_counter()
    try:
        ended = done(invoke(route, decode(task.raw), task, threading.Event(), routes.loop))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        took = _since(started_s)
        # The error of a program or a timeout says everything; a traceback would show only fileq's own code.
        lines = [] if isinstance(error, CommandFailed | TimedOut) else _traceback(error)
        ending = failed(error, route.give_up_on)
        return Trial(took, failure=f"{_next_step(ending)}: {ending.error}", traceback="".join(lines))
    return Trial(_since(started_s), ended.result, ended.warning)


def _next_step(ending: Failed) -> str:
    """What a worker would do with the job."""
    if ending.is_permanent:
        return "would not be retried"
    return "would be retried" if ending.after_s is None else f"would be retried after {format_duration(ending.after_s)}"


def _traceback(error: BaseException) -> list[str]:
    """The traceback without fileq's own frames above the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_FILEQ):
        trace = trace.tb_next
    return traceback.format_exception(type(error), error, trace)


def _since(started_s: float) -> str:
    return format_duration(max(0.001, round(time.perf_counter() - started_s, 3)))
