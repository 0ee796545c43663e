"""The log line for a terminal: time, level, event, then the fields, the most useful first.

Lines of the frequent events fit the terminal, or 100 columns where the width is unknown. JSON lines have every field
complete. Here the file or type has no name before it, `duration_ms=1234` is `duration=1.2s` as in `fileq show`, ids are
shortened, and fields that explain little at a terminal are left out. In a line that is too long, details go first, then
the first directories of the path, then the id and the duration. The name of a file, an error and what a handler printed
are never shortened; for the last two the other fields make room, if that is enough.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from fileq.core.text import end_of_path, printable, printable_lines
from fileq.core.units import short_duration

COLUMNS = 100  # where stderr is not a terminal
_LIST_WIDTH = 24  # of the elements of a list that are shown
_FIRST = ("filepath", "type", "directory")
_LAST = ("job_id", "reason", "error", "text", "worker_id", "trace_id", "span_id")
_ENDLESS = ("reason", "error", "text")  # never shortened, and not counted in the width if they alone are too long
_DETAILS = ("span_id", "trace_id", "worker_id", "queue")  # left out of a line about a file, in this order
_LAST_DETAILS = ("job_id", "duration_ms")  # the same, where fewer directories are not enough
_PATHS = ("filepath", "directory", "path", "where")
_LEFT_OUT = frozenset(("timestamp", "level", "event", "exception", "services", "routes", "chosen", "is_failure"))
_UNNAMED = frozenset(("filepath", "type", "directory"))
_NAMES = {"job_id": "id", "next_probe_s": "next_probe", "seconds": "duration"}
_SECONDS = frozenset(("next_probe_s", "seconds"))
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[^\s'\"=]+")
_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_LEVEL_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}


class ConsoleLine:
    """Renders the fields of one event. `has_colours`: for a terminal."""

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours

    def __call__(self, _logger: Any, _method: str, fields: Mapping[str, Any]) -> str:
        level, event = str(fields["level"]), printable(str(fields["event"]))
        time = f"{str(fields['timestamp'])[11:19]}Z"
        shown = {name: _text(name, fields[name]) for name in _order(fields)}
        head_width = len(f"{time} {level:<7} {event:<13}")
        shown = _fit(shown, fields, _columns() - head_width)
        line = (
            f"{self._in(_DIM, time)} {self._in(_LEVEL_COLOURS.get(level, ''), f'{level:<7}')} "
            f"{self._in(_BOLD, f'{event:<13}')}"
        )
        line += "".join(f" {self._in(_DIM, _label(name))}{text}" for name, text in shown.items())
        exception = fields.get("exception")
        return f"{line.rstrip()}\n{printable_lines(str(exception))}" if exception else line.rstrip()

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours and colour else text


def _order(fields: Mapping[str, Any]) -> list[str]:
    """The names of the fields to show. Without tracing the ids of spans are empty. The slot of an attempt is left out:
    its job is named."""
    named = "job_id" in fields
    names = [name for name in fields if name not in _LEFT_OUT and not (named and name == "worker_id")]
    names = [name for name in names if fields[name] or name not in ("trace_id", "span_id")]
    first = [name for name in _FIRST if name in names]
    last = [name for name in _LAST if name in names]
    return [*first, *(name for name in names if name not in first and name not in last), *last]


def _label(name: str) -> str:
    if name in _UNNAMED:
        return ""
    return f"{_NAMES.get(name) or name.removesuffix('_ms')}="


def _text(name: str, value: Any) -> str:
    if name == "job_id" and isinstance(value, str) and _UUID.fullmatch(value):
        return value[:8]
    if isinstance(value, list | tuple):
        return _listed([printable(str(item)) for item in value])
    if name in _SECONDS and isinstance(value, float):
        return short_duration(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if name.endswith("_ms") and isinstance(value, int):
        return short_duration(value / 1000)
    if not isinstance(value, str):
        return printable(str(value))
    text = printable(value)
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _listed(items: list[str]) -> str:
    """`a,b,+3`: the first elements and the number of the others."""
    shown = items[:1]
    while len(shown) < len(items) and len(",".join(items[: len(shown) + 1])) <= _LIST_WIDTH:
        shown.append(items[len(shown)])
    more = [f"+{len(items) - len(shown)}"] if len(items) > len(shown) else []
    return ",".join([*shown, *more]) or "none"


def _columns() -> int:
    """The width of the terminal, asked for each line: its window may have changed."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):  # not a terminal, or no file at all
        return COLUMNS


def _fit(shown: dict[str, str], fields: Mapping[str, Any], width: int) -> dict[str, str]:
    """The fields of a line for this width. A line that names a path has fewer details, then fewer directories at the
    path's beginning. An error or what a handler printed is fitted in with the rest, unless it alone is too long."""
    if endless := sum(len(_label(name)) + len(shown[name]) + 1 for name in _ENDLESS if name in shown):
        for more in ((), ("logger",), ("logger", "job_id"))[: 3 if "text" in shown else 1]:
            fitted = _shortened(shown, fields, width - endless, (*_DETAILS, *more))
            if _excess(fitted, width - endless) <= 0:
                return fitted
    return _shortened(shown, fields, width, _DETAILS)


def _shortened(
    shown: Mapping[str, str], fields: Mapping[str, Any], width: int, details: tuple[str, ...]
) -> dict[str, str]:
    left = dict(shown)
    name = next((name for name in _PATHS if name in left), None)
    if name is None:
        return left
    for detail in details:
        if _excess(left, width) > 0:
            left.pop(detail, None)
    path = str(fields[name])
    tries = []
    for more in range(len(_LAST_DETAILS) + 1):
        tried = {key: text for key, text in left.items() if key not in _LAST_DETAILS[:more]}
        if (excess := _excess(tried, width)) > 0:
            tried[name] = _text(name, end_of_path(path, len(path) - excess))
        if _excess(tried, width) <= 0:
            return tried
        tries.append(tried)
    return tries[0]


def _excess(shown: Mapping[str, str], width: int) -> int:
    return sum(len(_label(key)) + len(text) + 1 for key, text in shown.items() if key not in _ENDLESS) - width
