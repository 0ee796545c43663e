"""`fileq config check`: what is valid in a configuration and still surprises. Warnings only; problems are ConfigErrors.

Imports handlers only on request: importing runs the user's code.
"""

from __future__ import annotations

import contextlib
import sys

from msgspec import Struct

from fileq.config import Config
from fileq.handlers.route_warnings import warnings_before_import, warnings_of


class ConfigCheck(Struct, frozen=True):
    warnings: list[str]
    handlers: list[str] | None  # the routes in their order; None if handlers were not imported


def check_config(config: Config, app_dir: str | None = None) -> ConfigCheck:
    """Checks the routes; with `app_dir` also imports the handlers, as a worker would. ConfigError if one can't be."""
    if app_dir is None:
        return ConfigCheck(warnings_before_import(config), None)
    from fileq.handlers.before_enqueue import load_before_enqueue
    from fileq.handlers.routes import Routes

    # stdout is for the report: what a module prints while it is imported goes to stderr.
    with contextlib.redirect_stdout(sys.stderr):
        routes = Routes.load(config, app_dir=app_dir)
        load_before_enqueue(config, app_dir=app_dir)
    routes.loop.close()
    return ConfigCheck([*routes.warnings, *warnings_of(config, routes)], [str(route) for route in routes])
