"""`fileq config check`: what is valid in a configuration and still surprises. Warnings only; problems are ConfigErrors.

Imports handlers only on request: importing runs the user's code.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fileq.config import Config

_EVERY_FILE = ("**/*", "**")


class RoutePattern(Struct, frozen=True):
    """A route that takes files: where it is defined, and its glob."""

    where: str
    glob: str


class ConfigCheck(Struct, frozen=True):
    warnings: list[str]
    handlers: list[str] | None  # the routes in their order; None if handlers were not imported


def check_config(config: Config, app_dir: str | None = None) -> ConfigCheck:
    """Checks the routes; with `app_dir` also imports the handlers, as a worker would. ConfigError if one can't be."""
    if app_dir is None:
        routes = [RoutePattern(f"handlers[{i}]", r.match) for i, r in enumerate(config.handlers) if r.match is not None]
        return ConfigCheck([*_empty(config), *route_warnings(config, routes, is_complete=not config.imports)], None)
    from fileq.handlers.routes import Routes

    # stdout is for the report: what a module prints while it is imported goes to stderr.
    with contextlib.redirect_stdout(sys.stderr):
        loaded = Routes.load(config, app_dir=app_dir)
    loaded.loop.close()
    routes = [RoutePattern(route.where, route.match) for route in loaded if route.match is not None]
    warnings = [*loaded.warnings, *([] if len(loaded) else _empty(config))]
    return ConfigCheck([*warnings, *route_warnings(config, routes, is_complete=True)], [str(route) for route in loaded])


def _empty(config: Config) -> Iterator[str]:
    if not config.handlers and not config.imports:
        yield "handlers is empty: no job has a handler, and every job dies; add a route, or remove the key"
    elif not config.handlers:
        yield "handlers is empty: only jobs of the handlers in the imported modules can run"


def route_warnings(config: Config, routes: Sequence[RoutePattern], *, is_complete: bool) -> Iterator[str]:
    """Globs that match less than they seem to, and files for which no route is left.

    `is_complete` says that no other route can exist; modules that were not imported may define some."""
    globs = [route.glob for route in routes]
    for route in routes:
        if "**" not in route.glob:
            directory = route.glob.rpartition("/")[0]
            place = f"directly in {directory!r}" if directory else "of the top level"
            name = route.glob.rpartition("/")[2]
            deeper = f"{directory}/**/{name}" if directory else f"**/{name}"
            yield f"{route.where} ({route.glob}) matches only files {place}; for every directory write {deeper!r}"
    covers_all = any(glob in globs for glob in _EVERY_FILE) or set(config.producer.include_globs) <= set(globs)
    if globs and not covers_all and is_complete:
        yield (
            "no route matches every file: a file without a route dies (NoHandler); "
            "add a last route with match: '**/*', or narrow producer.include_globs"
        )
