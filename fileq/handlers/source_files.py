"""Finds the files that hold the configured handlers, without importing them: an operator's command must not run them.

Owns the search for modules in the application's directory. Installed packages are not searched.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from fileq.config import Config

_MOST_FILES = 200


def source_files(config: Config, app_dir: str) -> list[str]:
    """The modules of `handlers` and `imports` below this directory, and the modules below it that they import."""
    targets = [route.use.partition(":")[0] for route in config.handlers if route.use is not None]
    waiting = [*config.imports, *targets]
    found: dict[str, None] = {}
    while waiting and len(found) < _MOST_FILES:
        name = waiting.pop()
        file = _file_of(name, app_dir)
        if file is not None and file not in found:
            found[file] = None
            waiting += _imported_by(name, file)
    return list(found)


def _file_of(module: str, app_dir: str) -> str | None:
    if module.partition(".")[0] == "fileq":
        return None
    base = os.path.join(app_dir, *module.split("."))
    return next((file for file in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(file)), None)


def _imported_by(module: str, file: str) -> Iterator[str]:
    """Names that may be modules. Yields nothing for a file that is not Python."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (name for name in (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)) if name)
