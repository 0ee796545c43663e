"""`fileq config check`: what is valid in a configuration and still surprises. Warnings only; problems are ConfigErrors.

Imports handlers only on request: importing runs the user's code.
"""

from __future__ import annotations

import contextlib
import os
import sys

from msgspec import Struct

from fileq.commands.untaken_files import missed_by_case
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.handlers.routes import schedule_problems, warnings_before_import, warnings_of


class ConfigCheck(Struct, frozen=True):
    warnings: list[str]
    handlers: list[str] | None  # the routes in their order; None if handlers were not imported


def check_config(config: Config, app_dir: str | None = None) -> ConfigCheck:
    """Checks the routes, and the globs against the files that are there. With `app_dir` it imports the handlers too, as
    a worker would; ConfigError if one can't be, or if a schedule has a type that no route takes."""
    missed = missed_by_case(config) if os.path.isdir(config.producer.scan_dir) else []
    if app_dir is None:
        return ConfigCheck([*warnings_before_import(config), *missed], None)
    from fileq.handlers.extensions import load_before_enqueue
    from fileq.handlers.routes import Routes

    # stdout is for the report: what a module prints while it is imported goes to stderr.
    with contextlib.redirect_stdout(sys.stderr):
        routes = Routes.load(config, app_dir=app_dir)
        load_before_enqueue(config, app_dir=app_dir)
    routes.loop.close()
    if problems := list(schedule_problems(config, routes)):
        raise ConfigError(problems)
    return ConfigCheck([*routes.warnings, *warnings_of(config, routes), *missed], [str(route) for route in routes])
