"""Structured logs on stderr: readable lines on a terminal, JSON elsewhere. One line per event.

Only this module imports structlog. Writing a line never raises: a full disk or a closed stderr must not stop the work.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import threading
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from fileq.core.events import Event
from fileq.observe.console import ConsoleLine

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_RANKS = {**LEVELS, "warning": logging.WARNING, "none": logging.NOTSET}


class Logs:
    """Writes events as log lines. Events that `demotes` selects are written at level debug instead of their own."""

    def __init__(self, level: str) -> None:
        logger = structlog.get_logger().bind()
        self._methods = {name: getattr(logger, name) for name in ("debug", "info", "warning", "error")}
        # Compared before anything is built: most events of a busy worker are below the level.
        self.written = frozenset(name for name, rank in _RANKS.items() if rank >= LEVELS[level])
        self.demotes: Callable[[Event], bool] | None = None

    def __call__(self, event: Event) -> None:
        level = event.level
        if level not in self.written:
            return
        if self.demotes is not None and self.demotes(event):
            level = "debug"
            if level not in self.written:
                return
        self._methods[level](event.name, **_line_fields(event))


def set_up_logs(level: str, form: str) -> Logs:
    """Configures structlog for this process and returns the listener that writes log lines.

    Child processes call it too, so that `context.log` of a handler writes to the same stderr in the same form."""
    is_console = form == "console" or (form == "auto" and _is_terminal())
    renderer: Any = ConsoleLine(has_colours=_is_terminal()) if is_console else _as_json
    structlog.configure(
        processors=[_add_level_and_time, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    return Logs(level)


def _line_fields(event: Event) -> dict[str, Any]:
    fields = {name: value for name in line_fields(type(event)) if (value := getattr(event, name)) is not None}
    if "exception" in event.hidden:
        fields["exc_info"] = event.exception  # type: ignore[attr-defined]  # hidden names a field of this event
    return fields


@functools.cache
def line_fields(kind: type[Event]) -> tuple[str, ...]:
    """The names of the fields that a log line of this event can have."""
    return tuple(name for name in kind.__struct_fields__ if name not in kind.hidden)


class _Stderr:
    """Looks up sys.stderr for each line: a progress bar replaces it to keep log lines above itself."""

    def __init__(self, *_args: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        with _writing, contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                # Where the output of handlers is captured, stderr has a way around that for log lines.
                stream = getattr(sys.stderr, "uncaptured", sys.stderr)
                stream.write(line + "\n")
                stream.flush()

    debug = info = warning = error = msg


_writing = threading.Lock()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _add_level_and_time(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if "exc_info" in fields:
        # The plain traceback: structlog's other formats show the values of variables, which may be passwords.
        fields = structlog.processors.format_exc_info(logger, method, fields)
    fields["level"] = method
    fields["timestamp"] = datetime.now(UTC).isoformat()[:-6] + "Z"
    return fields


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
