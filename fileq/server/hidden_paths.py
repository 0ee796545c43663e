"""Removes the paths of files from what a server shows: the one place that does so if `server.files` is `none`.

Fields that hold a path become empty. A path is often repeated in an error or a traceback, so every text that contains a
path of the same answer has `…` in its place. The check of a file of a delivery names files in its error, which is also
shown without its job. What a caller gave stays as it is, but the payloads of fileq's own jobs are made by fileq. The id
of the batch of a delivery can't be hidden: it has part of the directory's name. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fileq.core.delivery import BATCH_PREFIX, without_files
from fileq.core.webhook import OWN_TYPES

# By the names of fields in answers and events. Their values are texts or null.
PATH_FIELDS = frozenset(("path", "filepath", "moved_to", "moved_from", "directory"))
OWN_PATH_FIELDS = PATH_FIELDS | {"dir", "match"}  # in the payloads and results of fileq's own jobs
LIST_FIELDS = frozenset(("outputs", "roots"))  # of paths, or of objects with paths: they are left out
PROBLEM_FIELDS = frozenset(("lost_roots",))  # texts that begin with a path
# What a caller gave or a handler returned is passed on as it is.
OPAQUE_FIELDS = frozenset(("payload", "result", "tags"))
_REASONS = ("the root ", "the folder ")  # how a `deferred` begins that names a directory
_SHORTEST = 3  # a shorter path, such as "/", would be found in any text


def without_paths(value: Any) -> Any:
    """The value, of JSON types, without paths."""
    paths = sorted({path for path in _paths_in(value) if len(path) >= _SHORTEST}, key=len, reverse=True)
    return _hidden(value, paths)


def _paths_in(value: Any, fields: frozenset[str] = PATH_FIELDS) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str) and (name in fields or name == _name_of_delivery(value)):
                yield item
            elif name == "roots" and isinstance(item, list | tuple):
                yield from (one for one in item if isinstance(one, str))
            elif name not in OPAQUE_FIELDS:
                yield from _paths_in(item, fields)
            elif (inside := _fields_inside(name, item, value)) is not None:
                yield from _paths_in(item, inside)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item, fields)


def _hidden(value: Any, paths: list[str], fields: frozenset[str] = PATH_FIELDS) -> Any:
    if isinstance(value, str):
        for path in paths:
            value = value.replace(path, "…")
        return without_files(value)
    if isinstance(value, list | tuple):
        return [_hidden(item, paths, fields) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _hidden_field(name, item, value, paths, fields) for name, item in value.items()}


def _hidden_field(name: str, value: Any, within: dict[str, Any], paths: list[str], fields: frozenset[str]) -> Any:
    if isinstance(value, str) and (name in fields or name == _name_of_delivery(within)):
        return ""
    if isinstance(value, list | tuple) and name in LIST_FIELDS:
        return []
    if isinstance(value, list | tuple) and name in PROBLEM_FIELDS:
        return ["…" for _ in value]
    if name == "deferred" and isinstance(value, str) and value.startswith(_REASONS):
        return "a root is missing"
    if name not in OPAQUE_FIELDS:
        return _hidden(value, paths, fields)
    inside = _fields_inside(name, value, within)
    return _hidden(value, paths, inside) if inside is not None else value


def _fields_inside(name: str, value: Any, within: dict[str, Any]) -> frozenset[str] | None:
    """The fields that hold paths in an opaque field which fileq itself has made; None if it has not."""
    if str(within.get("type") or "").startswith(OWN_TYPES):
        return OWN_PATH_FIELDS
    is_callback = name == "payload" and isinstance(value, dict) and _is_delivery(value.get("batch_id"))
    return PATH_FIELDS if is_callback else None


def _name_of_delivery(value: dict[str, Any]) -> str:
    """The field of a document or event of a delivery's batch that has its name, which is a directory; "" for none."""
    if "allow_failures" in value and _is_delivery(value.get("id")):
        return "name"
    return "batch" if _is_delivery(value.get("batch_id")) else ""


def _is_delivery(id: Any) -> bool:
    return isinstance(id, str) and id.startswith(BATCH_PREFIX)
