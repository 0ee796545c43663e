"""Structured logs on stderr: readable lines on a terminal, JSON elsewhere. One line per event.

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
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from fileq.core.events import Event
from fileq.core.hidden_import import hidden
from fileq.observe.console import ConsoleLine

with hidden("rich"):  # for a form of tracebacks that fileq does not use: 70 ms and 6 MB in each process
    import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_RANKS = {**LEVELS, "warning": logging.WARNING, "none": logging.NOTSET}


Render: TypeAlias = Callable[[Any, str, MutableMapping[str, Any]], str]


class Logs:
    """Writes events as log lines. Events that `demotes` selects are written at level debug instead of their own."""

    def __init__(self, level: str, render: Render) -> None:
        self._render = render
        self.is_console = isinstance(render, ConsoleLine)
        # Compared before anything is built: most events of a busy worker are below the level.
        self.written = frozenset(name for name, rank in _RANKS.items() if rank >= LEVELS[level])
        self.demotes: Callable[[Event], bool] | None = None

    def __call__(self, event: Event) -> None:
        self.write((event,))

    def write(self, events: Iterable[Event]) -> None:
        """Writes the lines of these events, in their order."""
        lines, timestamp = [], _timestamp()
        for event in events:
            level = event.level
            if level in self.written and self.demotes is not None and self.demotes(event):
                level = "debug"
            if level in self.written:
                lines.append(self._render(None, level, _fields_of_line(event, level, timestamp)))
        _write(lines)


def set_up_logs(level: str, form: str) -> Logs:
    """Configures structlog for this process and returns the listener that writes log lines.

    Child processes call it too, so that `context.log` of a handler writes to the same stderr in the same form."""
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
    fields: MutableMapping[str, Any]
    names, values_of = _line_reader(type(event))
    fields = {name: value for name, value in zip(names, values_of(event), strict=False) if value is not None}
    if "exception" in event.hidden:
        fields["exc_info"] = event.exception  # type: ignore[attr-defined]  # hidden names a field of this event
        fields["event"] = event.name
        return _with_level_and_time(level, fields, timestamp)
    fields["event"], fields["level"], fields["timestamp"] = event.name, level, timestamp
    return fields


@functools.cache
def line_fields(kind: type[Event]) -> tuple[str, ...]:
    """The names of the fields that a log line of this event can have."""
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
