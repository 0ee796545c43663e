"""What a configuration says of handlers: `fileq config check` and `fileq tasks`.

A check finds what is valid and still surprises: warnings only, problems are ConfigErrors. It imports handlers only on
request, because importing runs the user's code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

from msgspec import Struct

from fileq.commands.untaken_files import missed_by_case, scans_outside_roots
from fileq.config import Config, Loaded
from fileq.config.load import describe_broker_choice
from fileq.core.documented import means
from fileq.core.errors import ConfigError
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.registry import REGISTRY
from fileq.handlers.routes import Routes, made_job_problems, warnings_before_import, warnings_of


class ConfigCheck(Struct, frozen=True):
    is_ok: Annotated[bool, means("no problems; else the exit code is 2")]
    problems: Annotated[tuple[str, ...], means("all problems")] = ()
    path: Annotated[str | None, means("the file that was read, if any")] = None
    broker: Annotated[str | None, means("the broker, its address, and the setting that selected it")] = None
    ignored: Annotated[tuple[str, ...], means("FILEQ_ environment variables that match no setting")] = ()
    warnings: Annotated[tuple[str, ...], means("valid settings that may surprise")] = ()
    handlers: Annotated[tuple[str, ...] | None, means("the routes in order, with --handlers; else null")] = None


def check_config(loaded: Loaded, app_dir: str | None = None) -> ConfigCheck:
    """Checks the routes, the directories of schedules, and the globs against the files that are there. With `app_dir`
    it imports the handlers too, as a worker would; ConfigError if one can't be, or if a schedule has a type that no
    route takes."""
    config, handlers = loaded.config, None
    missed = scans_outside_roots(config)
    missed += missed_by_case(config) if os.path.isdir(config.producer.scan_dir) else []
    if app_dir is None:
        warnings = warnings_before_import(config)
    else:
        routes = load_handlers(config, app_dir)
        if problems := list(made_job_problems(config, routes)):
            raise ConfigError(problems)
        warnings, handlers = [*routes.warnings, *warnings_of(config, routes)], tuple(map(str, routes))
    broker = describe_broker_choice(loaded)
    return ConfigCheck(True, (), loaded.path, broker, loaded.unknown_env, (*warnings, *missed), handlers)


def load_handlers(config: Config, app_dir: str) -> Routes:
    """Imports everything that a worker and a producer would, and runs none of it. stdout is for the report: what a
    module prints while it is imported goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        routes = Routes.load(config, app_dir=app_dir)
        load_before_enqueue(config, app_dir=app_dir)
    routes.loop.close()
    return routes


class TaskSummary(Struct, frozen=True):
    name: Annotated[str, means("the type of its jobs")]
    function: Annotated[str, means("module:function")]
    payload: Annotated[str, means("type of its payload; empty if it can be anything")]
    priority: Annotated[str, means("default queue of its jobs")]
    timeout_s: Annotated[float, means("time limit per attempt")]
    max_retries: Annotated[int, means("retries after a failure")]
    isolation: Annotated[str, means("process or thread")]
    give_up_on: Annotated[tuple[int | str, ...], means("exit codes and exceptions after which a job is not retried")]
    has_retry_if: Annotated[bool, means("a function of the task decides whether to retry")]
    is_shadowed: Annotated[bool, means("a configured route takes these jobs, so the task never runs")]


def list_tasks(config: Config, app_dir: str) -> tuple[TaskSummary, ...]:
    """By their names. Raises ConfigError if a module can't be imported or a task is wrong."""
    routes = Routes.load(config, app_dir=app_dir)
    first = {route.type: route for route in reversed(list(routes)) if route.type is not None}
    found = []
    for task in REGISTRY.tasks():
        route, queue = first[task.name], task.priority or config.producer.default_priority
        options = (route.timeout, route.max_retries, route.isolation, route.give_up_on, route.retry_if is not None)
        is_shadowed = route.function is not task.function
        found.append(TaskSummary(task.name, task.target, task.payload_name, queue, *options, is_shadowed))
    return tuple(sorted(found, key=lambda task: task.name))
