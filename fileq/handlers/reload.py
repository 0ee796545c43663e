"""Imports the handlers again, for a worker that reloads its configuration.

Functions that are running keep the modules that they were imported with. Modules of Python and of other libraries stay.
"""

from __future__ import annotations

import sys

from fileq.config import Config
from fileq.handlers import extensions, registry
from fileq.handlers.loaded_modules import handler_modules
from fileq.handlers.routes import Routes


def reload_routes(config: Config, *, app_dir: str) -> Routes:
    """The routes with all handlers imported again. ConfigError leaves the modules and the decorated functions as they
    were."""
    modules = handler_modules(config, app_dir)
    before, extensions_before = registry.REGISTRY, extensions.EXTENSIONS
    kept = registry.Registry()
    for registration in before:
        if registration.function.__module__ not in modules:
            kept.add(registration)
    for name in modules:
        del sys.modules[name]
    registry.REGISTRY, extensions.EXTENSIONS = kept, extensions_before.without(modules)
    try:
        return Routes.load(config, app_dir=app_dir)
    except BaseException:
        registry.REGISTRY, extensions.EXTENSIONS = before, extensions_before
        sys.modules.update(modules)
        raise
