"""Removes the paths of files from what a server shows: the one place that does so if `server.files` is `none`.

Fields that hold a path become empty. A path is often repeated in an error or a traceback, so every text that contains a
path of the same answer has `…` in its place; in fields for people also the name of the file. The check of a file of a
delivery names files in its error, which is also shown without its job. Of the error of a batch, which is that of a job
in another answer, only the kind is shown. What a caller gave stays as it is, but the payloads of fileq's own jobs are
made by fileq. The id of the batch of a delivery can't be hidden: it has part of the directory's name. Does no I/O.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

from fileq.core.delivery import without_files
from fileq.core.outcome import kind_of
from fileq.core.own_jobs import CALLBACK_IDS, DELIVERY_BATCHES, is_own_type
from fileq.core.text import SHORTEST_HIDDEN

# By the names of fields in answers and events. Their values are texts or null.
PATH_FIELDS = frozenset(
    ("path", "path_b64", "raw_b64", "filepath", "moved_to", "moved_from", "directory", "sample_path")
)
OWN_PATH_FIELDS = PATH_FIELDS | {"dir", "match"}  # in the payloads and results of fileq's own jobs
LIST_FIELDS = frozenset(("outputs", "roots", "directories"))  # of paths, or of objects with paths: they are left out
PROBLEM_FIELDS = frozenset(("lost_roots",))  # texts that begin with a path
# What a caller gave or a handler returned is passed on as it is.
OPAQUE_FIELDS = frozenset(("payload", "result", "tags"))
# Texts for people, in which a name alone may stand. Elsewhere a name could be a word of the API, such as a state.
TEXT_FIELDS = frozenset(("error", "dead_error", "first_error", "traceback", "problem", "reason", "cause", "deferred"))
DEEPEST = 32  # levels of nesting
_REASONS = ("the root ", "the folder ")  # how a `deferred` begins that names a directory


class _Hidden(NamedTuple):
    """What must not be shown: paths anywhere, names of files in texts for people."""

    paths: _Known
    names: _Known
    is_for_people: bool = False


def without_paths(value: Any) -> Any:
    """The value, of JSON types, without paths."""
    paths = {path for path in _paths_in(value) if len(path) >= SHORTEST_HIDDEN}
    names = {name for path in paths if len(name := path.rpartition("/")[2]) >= SHORTEST_HIDDEN}
    return _hidden(value, _Hidden(_Known(paths), _Known(names)))


class _Known:
    """Finds these words in texts. A page has up to 1,000 paths and many texts, so no text is searched for each of them:
    they are sorted, and the only ones that can begin at a place are the last that is not after the text from there on,
    and those that this one begins with."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words)
        self._shorter: dict[str, str] = {}  # the longest other word that a word begins with
        above: list[str] = []
        for word in self._words:
            while above and not word.startswith(above[-1]):
                above.pop()
            self._shorter[word] = above[-1] if above else ""
            above.append(word)
        self._starts = {word[:SHORTEST_HIDDEN] for word in self._words}
        firsts = "".join(sorted({re.escape(word[0]) for word in self._words}))
        self._first = re.compile(f"[{firsts}]") if firsts else None
        self._longest = max(map(len, self._words), default=0)

    def hidden_in(self, text: str) -> str:
        if self._first is None:
            return text
        shown, place = [], 0
        for first in self._first.finditer(text):
            start = first.start()
            if start < place or text[start : start + SHORTEST_HIDDEN] not in self._starts:
                continue
            if found := self._longest_at(text, start):
                shown += [text[place:start], "…"]
                place = start + len(found)
        return "".join(shown) + text[place:]

    def _longest_at(self, text: str, start: int) -> str:
        """The longest word that begins there; "" for none."""
        piece = text[start : start + self._longest]
        number = bisect_right(self._words, piece)
        found = self._words[number - 1] if number else ""
        while not piece.startswith(found):
            found = self._shorter[found]
        return found


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


def _hidden(value: Any, found: _Hidden, fields: frozenset[str] = PATH_FIELDS) -> Any:
    if isinstance(value, str):
        value = found.paths.hidden_in(value)
        return without_files(found.names.hidden_in(value) if found.is_for_people else value)
    if isinstance(value, list | tuple):
        return [_hidden(item, found, fields) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _hidden_field(name, item, value, found, fields) for name, item in value.items()}


def _hidden_field(name: str, value: Any, within: dict[str, Any], found: _Hidden, fields: frozenset[str]) -> Any:
    if isinstance(value, str) and (name in fields or name == _name_of_delivery(within)):
        return ""
    if isinstance(value, list | tuple) and name in LIST_FIELDS:
        return []
    if isinstance(value, list | tuple) and name in PROBLEM_FIELDS:
        return ["…" for _ in value]
    if name == "deferred" and isinstance(value, str) and value.startswith(_REASONS):
        return "a root is missing"
    if name == "first_error" and isinstance(value, str) and ("allow_failures" in within or "callback" in within):
        return _without_cause(value)
    if name in TEXT_FIELDS and isinstance(value, str):
        found = found._replace(is_for_people=True)
    if name not in OPAQUE_FIELDS:
        return _hidden(value, found, fields)
    inside = _fields_inside(name, value, within)
    return _hidden(value, found, inside) if inside is not None else value


def _without_cause(error: str) -> str:
    """Of the error of a member, which may name any file."""
    hidden = without_files(error)
    return hidden if hidden != error else kind_of(error)


def _fields_inside(name: str, value: Any, within: dict[str, Any]) -> frozenset[str] | None:
    """The fields that hold paths in an opaque field which fileq itself has made; None if it has not. Clients can give
    jobs neither such types nor such ids. A program that pushes jobs can, but nothing of fileq's own is nested deep."""
    if is_own_type(str(within.get("type") or "")):
        fields = OWN_PATH_FIELDS
    elif name == "payload" and _is_delivery(id := within.get("id")) and id.endswith(CALLBACK_IDS):
        fields = PATH_FIELDS
    else:
        return None
    return fields if not _is_deep(value) else None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [item for items in inside for item in items]
    return bool(level)


def _name_of_delivery(value: dict[str, Any]) -> str:
    """The field of a document or event of a delivery's batch that has its name, which is a directory; "" for none."""
    if "allow_failures" in value and _is_delivery(value.get("id")):
        return "name"
    return "batch" if _is_delivery(value.get("batch_id")) else ""


def _is_delivery(id: Any) -> TypeGuard[str]:
    return isinstance(id, str) and id.startswith(DELIVERY_BATCHES)
