"""Checks that handlers can be imported and programs exist. Imports handlers, as a worker would, but runs none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from fileq.config import Loaded
from fileq.core.errors import ConfigError
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.routes import Routes, schedule_problems, warnings_of

_ADVICE = "--app-dir names the directory of the handlers; 'fileq try PATH' runs one"


def check_handlers(loaded: Loaded, app_dir: str) -> Iterator[Finding]:
    try:
        # stdout is for findings: what a module prints while it is imported goes to stderr.
        with contextlib.redirect_stdout(sys.stderr):
            routes = Routes.load(loaded.config, app_dir=app_dir)
            load_before_enqueue(loaded.config, app_dir=app_dir)
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("handlers", problem, _ADVICE if "module" in problem else "")
        return
    routes.loop.close()
    for problem in schedule_problems(loaded.config, routes):
        yield unknown("handlers", problem, "'fileq tasks' lists the tasks of the configuration")
    for warning in routes.warnings:
        yield unknown("handlers", warning)
    if not loaded.config.handlers_are_given and len(routes) <= 1:
        yield unknown("handlers", "none is configured: files are only checksummed", "set 'handlers' to process them")
        return
    for route in routes:
        yield sound("handlers", str(route))
    for warning in warnings_of(loaded.config, routes):
        yield unknown("handlers", warning)
