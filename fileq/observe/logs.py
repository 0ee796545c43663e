"""Structured logs on stderr: readable lines on a terminal, JSON elsewhere. One line per event, on a terminal without
what handlers print if they succeed.

Only this module imports structlog, for `context.log` of handlers. Events are rendered by the same functions without it:
every job has a line, and structlog took longer for it than all else that a worker does about the job.

Events that are passed together share a time and few writes. They are written before the call returns, so a kill -9
leaves at most the lines of the current call unwritten. No write of several lines is longer than a pipe takes at once:
child processes write to the same stderr, and must not write into the middle of a line.

Writing a line never raises: a full disk or a closed stderr must not stop the work.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import structlog

from fileq.core.events import AttemptEnded, Event, HandlerPrinted, OutputEvent
from fileq.core.text import end_of_path, printable, printable_lines
from fileq.core.units import short_duration

HELD_LINES_MAX = 50  # of one job
HELD_JOBS_MAX = 1_000
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_RANKS = {**LEVELS, "warning": logging.WARNING, "none": logging.NOTSET}


Render: TypeAlias = Callable[[Any, str, MutableMapping[str, Any]], str]


class Logs:
    """Writes events as log lines. Events that `demotes` selects are written at level debug instead of their own.
    `held_output` keeps what handlers print until their attempts end."""

    def __init__(self, level: str, render: Render) -> None:
        self._render = render
        self.is_console = isinstance(render, ConsoleLine)
        # Compared before anything is built: most events of a busy worker are below the level.
        self.written = frozenset(name for name, rank in _RANKS.items() if rank >= LEVELS[level])
        self.demotes: Callable[[Event], bool] | None = None
        self.held_output: HeldOutput | None = None

    def hold_output(self) -> None:
        """From now on what a handler prints is written only if its attempt fails; at level debug always, at once."""
        if "debug" not in self.written:
            self.held_output = HeldOutput()

    def __call__(self, event: Event) -> None:
        self.write((event,))

    def write(self, events: Iterable[Event]) -> None:
        lines: list[str] = []
        timestamp = _timestamp()
        for event in events:
            level = event.level
            if level in self.written and self.demotes is not None and self.demotes(event):
                level = "debug"
            if level in self.written:
                line = self._render(None, level, _fields_of_line(event, level, timestamp))
                lines += self.held_output.due(event, line) if self.held_output is not None else (line,)
        _write(lines)


class HeldOutput:
    """Lines of handlers whose attempts have not ended, the last ones of each. A record of level warning or above is not
    held back."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[str]] = {}  # by the id of the job

    def due(self, event: Event, line: str) -> Sequence[str]:
        """The lines to be written with this event, whose own line is `line`."""
        if isinstance(event, OutputEvent) and event.job_id is not None:
            if isinstance(event, HandlerPrinted) and event.level != "info":
                return (line,)
            if event.job_id not in self._lines and len(self._lines) >= HELD_JOBS_MAX:
                del self._lines[next(iter(self._lines))]  # its attempt ended without an event
            self._lines.setdefault(event.job_id, deque(maxlen=HELD_LINES_MAX)).append(line)
            return ()
        if isinstance(event, AttemptEnded):
            held = self._lines.pop(event.job_id, ())
            return (*held, line) if event.is_error else (line,)
        return (line,)


def set_up_logs(level: str, form: str) -> Logs:
    """Configures structlog for this process and returns the listener that writes log lines. Child processes call it
    too, so that `context.log` of a handler writes to the same stderr in the same form."""
    is_console = form == "console" or (form == "auto" and _is_terminal())
    render: Render = ConsoleLine(has_colours=_is_terminal()) if is_console else _as_json
    structlog.configure(
        processors=[_add_level_and_time, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    return Logs(level, render)


def _fields_of_line(event: Event, level: str, timestamp: str) -> MutableMapping[str, Any]:
    """As structlog and _add_level_and_time put them together, in the same order."""
    names, values_of = _line_reader(type(event))
    fields = {name: value for name, value in zip(names, values_of(event), strict=False) if value is not None}
    if "exception" in event.hidden:
        fields["exc_info"] = event.exception  # type: ignore[attr-defined]  # hidden names a field of this event
    fields["event"] = event.name
    return _with_level_and_time(level, fields, timestamp)


@functools.cache
def line_fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in kind.hidden)


@functools.cache
def _line_reader(kind: type[Event]) -> tuple[tuple[str, ...], Callable[[Event], Sequence[Any]]]:
    """The names of the fields of a log line, and a function that reads all of them at once from an event."""
    names = line_fields(kind)
    if len(names) > 1:
        return names, attrgetter(*names)
    return names, lambda event: [getattr(event, name) for name in names]


class _Stderr:
    """The logger behind `context.log`."""

    def __init__(self, *_args: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        _write((line,))

    debug = info = warning = error = msg


_writing = threading.Lock()


def _write(lines: Sequence[str]) -> None:
    """Looks up sys.stderr each time: a progress bar replaces it to keep log lines above itself."""
    with _writing, contextlib.suppress(OSError, ValueError):
        if lines and sys.stderr is not None:
            # Where the output of handlers is captured, stderr has a way around that for log lines.
            stream = getattr(sys.stderr, "uncaptured", sys.stderr)
            for text in _texts(lines):
                stream.write(text)
                stream.flush()


def _texts(lines: Sequence[str]) -> Iterator[str]:
    """The lines, several in one text as long as a pipe takes it in one piece; a line that is longer stands alone."""
    text, size = "", 0
    for line in lines:
        line_size = len(line) + 1 if line.isascii() else len(line.encode(errors="surrogatepass")) + 1
        if text and size + line_size > select.PIPE_BUF:
            yield text
            text, size = "", 0
        text += line + "\n"
        size += line_size
    yield text


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _add_level_and_time(_logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return _with_level_and_time(method, fields, _timestamp())


def _with_level_and_time(level: str, fields: MutableMapping[str, Any], timestamp: str) -> MutableMapping[str, Any]:
    if "exc_info" in fields:
        # The plain traceback: structlog's other formats show the values of variables, which may be passwords.
        fields = structlog.processors.format_exc_info(None, level, fields)
    fields["level"] = level
    fields["timestamp"] = timestamp
    return fields


def _timestamp() -> str:
    return datetime.now(UTC).isoformat()[:-6] + "Z"


def _as_json(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    """ASCII only: some readers take U+2028 for the end of a line, and a file name may hold bytes that are not text."""
    try:
        line = _encoder.encode(fields)
        if line.isascii():
            return line.decode()
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        pass  # json.dumps below is slower and accepts everything
    return json.dumps({str(key): _encodable(value) for key, value in fields.items()}, default=str)


_encoder = msgspec.json.Encoder(enc_hook=str)


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


# The line for a terminal

COLUMNS = 100  # where stderr is not a terminal
_LIST_WIDTH = 24  # of the elements of a list that are shown
_FIRST = ("filepath", "type", "directory")
_LAST = ("job_id", "reason", "error", "text", "worker_id", "trace_id", "span_id")
_ENDLESS = ("reason", "error", "text")  # never shortened, and not counted in the width if they alone are too long
_DETAILS = ("span_id", "trace_id", "worker_id", "queue")  # left out of a line about a file, in this order
_LAST_DETAILS = ("job_id", "duration_ms")  # the same, where fewer directories are not enough; not the id of an error
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
    """The log line for a terminal: time, level, event, then the fields, the most useful first. `has_colours`: for a
    terminal.

    Lines of the frequent events fit the terminal, or 100 columns where the width is unknown. JSON lines have every
    field complete. Here the file or type has no name before it, `duration_ms=1234` is `duration=1.2s` as in `fileq
    show`, ids are shortened, and fields that explain little at a terminal are left out. In a line that is too long,
    details go first, then the first directories of the path, then the id and the duration. The name of a file, an error
    and what a handler printed are never shortened; for the last two the other fields make room, if that is enough."""

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
    # `fileq show` needs the id of a job that failed.
    last_details = [detail for detail in _LAST_DETAILS if detail != "job_id" or "error" not in left]
    for more in range(len(last_details) + 1):
        tried = {key: text for key, text in left.items() if key not in last_details[:more]}
        if (excess := _excess(tried, width)) > 0:
            tried[name] = _text(name, end_of_path(path, len(path) - excess))
        if _excess(tried, width) <= 0:
            return tried
        tries.append(tried)
    return tries[0]


def _excess(shown: Mapping[str, str], width: int) -> int:
    return sum(len(_label(key)) + len(text) + 1 for key, text in shown.items() if key not in _ENDLESS) - width
