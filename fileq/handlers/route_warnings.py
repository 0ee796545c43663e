"""Warns of routes that are valid and may surprise: globs that match little, files that no route takes. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct

from fileq.config import Config
from fileq.core.own_jobs import is_own_type

if TYPE_CHECKING:
    from fileq.handlers.routes import Routes

_EVERY_FILE = ("**/*", "**")


class RoutePattern(Struct, frozen=True):
    """A route that takes files: where it is defined, and its glob."""

    where: str
    glob: str


def warnings_of(config: Config, routes: Routes) -> list[str]:
    """For routes that were loaded, decorated ones included."""
    patterns = [RoutePattern(route.where, route.match) for route in routes if route.match is not None]
    empty = [] if len(routes) else _empty(config)
    return [*empty, *_warnings(config, patterns, is_complete=True)]


def schedule_problems(config: Config, routes: Routes) -> Iterator[str]:
    """Schedules of the configuration whose jobs no route takes. A worker only warns of them: another may have the
    task."""
    for name, settings in config.schedules.items():
        type = settings.definition.type
        if not is_own_type(type) and type not in routes.types:
            near = get_close_matches(type, routes.types, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "add its module to imports, or a route"
            yield f"schedules.{name}: no task or route takes jobs of type {type!r}: they would be dead; {advice}"


def warnings_before_import(config: Config) -> list[str]:
    """For the routes in the configuration alone. The modules in `imports` may define more."""
    patterns = [RoutePattern(f"handlers[{i}]", r.match) for i, r in enumerate(config.handlers) if r.match is not None]
    return [*_empty(config), *_warnings(config, patterns, is_complete=not config.imports)]


def _empty(config: Config) -> Iterator[str]:
    if not config.handlers and not config.imports:
        yield "handlers is empty: no job has a handler, and every job dies; add a route, or remove the key"
    elif not config.handlers:
        yield "handlers is empty: only jobs of the handlers in the imported modules can run"


def _warnings(config: Config, routes: Sequence[RoutePattern], *, is_complete: bool) -> Iterator[str]:
    """`is_complete` says that no other route can exist."""
    globs = [route.glob for route in routes]
    for route in routes:
        if "**" not in route.glob:
            directory, _, name = route.glob.rpartition("/")
            place = f"directly in {directory!r}" if directory else "of the top level"
            deeper = f"{directory}/**/{name}" if directory else f"**/{name}"
            yield f"{route.where} ({route.glob}) matches only files {place}; for every directory write {deeper!r}"
    covers_all = any(glob in globs for glob in _EVERY_FILE) or set(config.producer.include_globs) <= set(globs)
    if globs and not covers_all and is_complete:
        yield (
            "no route matches every file: a file without a route dies (NoHandler); "
            "add a last route with match: '**/*', or narrow producer.include_globs"
        )
