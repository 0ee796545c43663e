"""Imports the handlers again, for a worker that reloads its configuration.

Functions that are running keep the modules that they were imported with. Modules of Python and of other libraries stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.handlers import extensions
from fileq.handlers.loaded_modules import handler_modules
from fileq.handlers.registry import REGISTRY, Registration
from fileq.handlers.routes import Routes


def reload_routes(config: Config, serving: Routes, *, app_dir: str) -> Routes:
    """The routes with all handlers imported again. `serving` are those in use.

    ConfigError leaves the modules and the decorated functions as they were. It is also raised if a type would be lost
    that `serving` has, because its waiting jobs would die; a type that the configuration dropped may go."""
    modules = handler_modules(config, app_dir)
    before, extensions_before = tuple(REGISTRY), extensions.EXTENSIONS
    for name in modules:
        del sys.modules[name]
    REGISTRY.reset(one for one in before if one.function.__module__ not in modules)
    extensions.EXTENSIONS = extensions_before.without(modules)
    try:
        routes = Routes.load(config, app_dir=app_dir)
        if lost := list(_lost_types(before, serving, routes)):
            raise ConfigError(_refusal(lost))
    except BaseException:
        REGISTRY.reset(before)
        extensions.EXTENSIONS = extensions_before
        sys.modules.update(modules)
        raise
    return routes


def _lost_types(decorated: Iterable[Registration], serving: Routes, routes: Routes) -> Iterator[str]:
    """The types of decorated functions that are served and not in the new routes. Without those of a module that is no
    longer imported after the configuration has dropped a module: the operator wants them gone. A route of the
    configuration itself goes only if its entry does."""
    lost = {route.type for route in serving} - {route.type for route in routes}
    has_dropped_module = bool(serving.named_modules - routes.named_modules)
    for one in decorated:
        is_dropped = has_dropped_module and one.function.__module__ not in sys.modules
        if one.type is not None and one.type in lost and not is_dropped:
            yield one.type


def _refusal(lost: list[str]) -> str:
    names = ", ".join(map(repr, lost))
    is_one = len(lost) == 1
    return (
        f"this worker serves the type{'' if is_one else 's'} {names}, which the modules no longer define: waiting jobs "
        f"would fail; define {'it' if is_one else 'them'} again, remove the module from imports, or restart the worker"
    )
