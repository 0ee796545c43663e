"""Removes the paths of files from what a server shows: the one place that does so if `server.files` is `none`.

Fields that hold a path become empty. A path is often repeated in an error or a traceback, so every text that contains a
path of the same answer has `…` in its place. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# By the names of fields in answers and events. Their values are texts or null.
PATH_FIELDS = frozenset(("path", "filepath", "moved_to", "moved_from", "directory"))
LIST_FIELDS = frozenset(("outputs",))  # of objects with paths: they are left out
# What a caller gave or a handler returned is passed on as it is.
OPAQUE_FIELDS = frozenset(("payload", "result", "tags"))
_SHORTEST = 3  # a shorter path, such as "/", would be found in any text


def without_paths(value: Any) -> Any:
    """The value, of JSON types, without paths."""
    paths = sorted({path for path in _paths_in(value) if len(path) >= _SHORTEST}, key=len, reverse=True)
    return _hidden(value, paths)


def _paths_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name in PATH_FIELDS and isinstance(item, str):
                yield item
            elif name not in OPAQUE_FIELDS:
                yield from _paths_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)


def _hidden(value: Any, paths: list[str]) -> Any:
    if isinstance(value, str):
        for path in paths:
            value = value.replace(path, "…")
        return value
    if isinstance(value, list | tuple):
        return [_hidden(item, paths) for item in value]
    return (
        {name: _hidden_field(name, item, paths) for name, item in value.items()} if isinstance(value, dict) else value
    )


def _hidden_field(name: str, value: Any, paths: list[str]) -> Any:
    if name in PATH_FIELDS and isinstance(value, str):
        return ""
    if name in LIST_FIELDS and isinstance(value, list | tuple):
        return []
    return value if name in OPAQUE_FIELDS else _hidden(value, paths)
