"""The modules of the user's handlers that this process has imported, and the text that they were imported from."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from fileq.config import Config
from fileq.handlers.registry import REGISTRY


def named_modules(config: Config) -> frozenset[str]:
    """The modules that the configuration names: those of `imports`, of middleware and of handlers."""
    named = [*config.imports, *config.middleware, *(route.use for route in config.handlers if route.use is not None)]
    return frozenset(name.partition(":")[0] for name in named)


def handler_modules(config: Config, app_dir: str) -> dict[str, ModuleType]:
    """The imported modules below the application's directory, in a package that the configuration names, or with
    decorated handlers or tasks."""
    directory = os.path.abspath(app_dir or os.curdir)
    packages = {name.partition(".")[0] for name in named_modules(config)}
    decorated = {one.function.__module__ for one in REGISTRY}
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("fileq", "__main__")
        and (name.partition(".")[0] in packages or name in decorated or _is_below(module, directory))
    }


def _is_below(module: ModuleType, directory: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file.startswith(directory + os.sep) and not file.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))


def keep_text(modules: Iterable[ModuleType]) -> None:
    """Keeps the source of these modules for tracebacks, which would otherwise show lines of files that have changed
    since: it would look as if the fixed code failed."""
    for file in [file for module in modules if (file := getattr(module, "__file__", None) or "").endswith(".py")]:
        linecache.cache.pop(file, None)
        lines = linecache.getlines(file)
        if lines:
            # Without a modification time: linecache never reads the file again.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
