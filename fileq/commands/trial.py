"""`fileq try PATH`: runs the handler that would get this file, in the foreground. No queue, no retries, no record.

The result goes to stdout, everything about it to stderr.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from types import TracebackType

import msgspec

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

OK, FAILED = 0, 1
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


def try_path(loaded: Loaded, path: str, app_dir: str = "") -> int:
    """0 if the handler succeeded, 1 if it failed; ConfigError if no handler would get this file."""
    config = loaded.config
    log_to_stderr(config)
    routes = Routes.load(config, app_dir=app_dir)
    try:
        task = _task(routes, config.paths, path)
        return _try(routes, task)
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


def _try(routes: Routes, task: Task) -> int:
    route = routes[task.route]
    _say(f"{route} (timeout {format_duration(route.timeout)})")
    started_s = time.perf_counter()
    try:
        ended = done(invoke(route, decode(task.raw), task, threading.Event(), routes.loop))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        took = _since(started_s)
        if not isinstance(error, CommandFailed | TimedOut):
            traceback.print_exception(type(error), error, _theirs(error.__traceback__))
        ending = failed(error, route.give_up_on)
        _say(f"failed after {took}, {_next_step(ending)}: {ending.error}")
        return FAILED
    took = _since(started_s)
    if ended.result:
        print(msgspec.json.format(ended.result, indent=2).decode())
    if ended.warning:
        _say(ended.warning)
    _say(f"done in {took}")
    return OK


def _next_step(ending: Failed) -> str:
    """What a worker would do with the job."""
    if ending.is_permanent:
        return "not worth a retry"
    return "to be retried" if ending.after_s is None else f"to be retried after {format_duration(ending.after_s)}"


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def _since(started_s: float) -> str:
    return format_duration(max(0.001, round(time.perf_counter() - started_s, 3)))


def _say(text: str) -> None:
    print(text, file=sys.stderr)
