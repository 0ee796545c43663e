"""Structured logs on stderr: for people on a terminal, JSON for machines. One line an event, data as fields."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from fileq.core.events import Emit
from fileq.core.text import printable

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_RANKS = {**LEVELS, "warning": logging.WARNING, "none": logging.NOTSET}


def written_levels(level: str) -> frozenset[str]:
    """Those that end in lines if this one is configured."""
    return frozenset(name for name, rank in _RANKS.items() if rank >= LEVELS[level])


def set_up_logs(level: str, form: str) -> Emit:
    """The channel on which services tell what they do, ending in log lines. Also for processes that only run handlers,
    whose context.log ends in the same place."""
    is_console = form == "console" or (form == "auto" and _is_terminal())
    renderers: list[Any] = [_one_line, _console()] if is_console else [_as_json]
    structlog.configure(
        processors=[_completed, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    logger = structlog.get_logger().bind()
    methods = {name: getattr(logger, name) for name in ("debug", "info", "warning", "error")}
    written = written_levels(level)

    def emit(event: str, *, level: str = "info", **fields: Any) -> None:
        if level in written:  # asked here, before anything is done for a line that nobody wants
            methods[level](event, **_for_a_line(fields))

    return emit


def _for_a_line(fields: dict[str, Any]) -> dict[str, Any]:
    """A job is told as such to those who need all of it; a line has its ids."""
    if "job" in fields:
        job = fields.pop("job")
        if job is not None:
            fields = {"job_id": job.id, "trace_id": job.trace_id, "span_id": job.span_id, **fields}
    return fields


class _Stderr:
    """Writes to what is stderr at the moment: a progress bar puts itself in between, and lines go above it."""

    def __init__(self, *_args: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        # Nobody listens any more, the disk is full, or there never was a place for it: no reason to stop working.
        with _writing, contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()

    debug = info = warning = error = msg


_writing = threading.Lock()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _console() -> Any:
    # The plain traceback: the others show the values of variables, and one of them may be a password.
    return structlog.dev.ConsoleRenderer(colors=_is_terminal(), exception_formatter=structlog.dev.plain_traceback)


def _completed(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if "exc_info" in fields:
        fields = structlog.processors.format_exc_info(logger, method, fields)
    fields["level"] = method
    fields["timestamp"] = datetime.now(UTC).isoformat()[:-6] + "Z"
    return fields


def _as_json(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    """In ASCII: U+2028 and the like end lines for some. A file name may hold bytes that are not text."""
    try:
        line = _encoder.encode(fields)
        if line.isascii():
            return line.decode()
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        pass  # the slow way takes anything
    return json.dumps({str(key): _encodable(value) for key, value in fields.items()}, default=str)


_encoder = msgspec.json.Encoder(enc_hook=str)


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _one_line(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A file name may hold whole lines, or words that a terminal obeys: none of them may reach it. Ids of a trace that
    is not there are left out."""
    return {
        key: printable(value) if isinstance(value, str) and key != "exception" else value
        for key, value in fields.items()
        if value or key not in ("trace_id", "span_id")
    }
