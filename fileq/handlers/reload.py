"""Imports the handlers again, for a worker that reloads its configuration.

Functions that are running keep the modules that they were imported with. Modules of Python and of other libraries stay.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from fileq.config import Config
from fileq.handlers import registry
from fileq.handlers.routes import Routes


def reload_routes(config: Config, *, app_dir: str) -> Routes:
    """The routes with all handlers imported again. ConfigError leaves the modules and the decorated functions as they
    were."""
    modules = _handler_modules(config, os.path.abspath(app_dir or os.curdir))
    before = registry.REGISTRY
    kept = registry.Registry()
    for registration in before:
        if registration.function.__module__ not in modules:
            kept.add(registration)
    for name in modules:
        del sys.modules[name]
    registry.REGISTRY = kept
    try:
        return Routes.load(config, app_dir=app_dir)
    except BaseException:
        registry.REGISTRY = before
        sys.modules.update(modules)
        raise


def _handler_modules(config: Config, app_dir: str) -> dict[str, ModuleType]:
    """The imported modules below the application's directory or in a package that the configuration names."""
    named = [*config.imports, *(route.use for route in config.handlers if route.use is not None)]
    packages = {name.partition(":")[0].partition(".")[0] for name in named}
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("fileq", "__main__")
        and (name.partition(".")[0] in packages or _is_below(module, app_dir))
    }


def _is_below(module: ModuleType, app_dir: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file.startswith(app_dir + os.sep) and not file.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))
