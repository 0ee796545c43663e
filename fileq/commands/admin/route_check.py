"""Whether a route of this name exists, as far as this machine can say. Imports no handler: decorated handlers are
unknown here, and workers report only routes whose breaker is not closed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from fileq.config import Config
from fileq.core.errors import ConfigError


def is_configured(route: str, config: Config) -> bool:
    """Whether the configuration has this route. The second route with the same glob is called `GLOB (2)`."""
    names = set(_configured(config))
    return route in names or re.sub(r" \(\d+\)$", "", route) in names


def check_route(route: str, config: Config, reported: Iterable[str]) -> None:
    """ConfigError for a name that is misspelt or unknown. `reported` are the routes that workers name.

    Accepts a name that no configured route resembles, if the configuration need not be complete: it imports decorated
    handlers, or has no handlers, as on a machine without workers."""
    known = list(dict.fromkeys([*reported, *_configured(config)]))
    if not route or route in known or is_configured(route, config):
        return
    near = get_close_matches(route, known, n=1)
    if near or (config.handlers_are_given and not config.imports):
        advice = f"did you mean {near[0]!r}?" if near else f"the routes are {', '.join(map(repr, known)) or 'none'}"
        raise ConfigError(
            f"no route is known as {route!r}: the configuration has none, and no worker reports one; {advice}"
        )


def _configured(config: Config) -> Iterator[str]:
    for route in config.handlers:
        yield route.name or route.type or route.match or ""
    if config.worker.allow_commands:
        yield "command"
