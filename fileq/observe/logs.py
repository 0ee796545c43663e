"""Structured logs on stderr: for people on a terminal, JSON for machines. One line an event, data as fields."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from fileq.service import Emit
from fileq.terminal import printable

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def set_up_logs(level: str, form: str) -> Emit:
    """The channel on which services tell what they do, ending in log lines."""
    is_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if is_console
        else structlog.processors.JSONRenderer(default=str)  # ASCII: U+2028 and the like end lines for some
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _one_line if is_console else _encodable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    logger = structlog.get_logger()

    def emit(event: str, *, level: str = "info", **fields: Any) -> None:
        if level != "none":
            getattr(logger, level)(event, **fields)

    return emit


class _Stderr:
    """Writes to what is stderr at the moment: a progress bar puts itself in between, and lines go above it."""

    def __init__(self, *_args: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        with _writing:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = msg


_writing = threading.Lock()


def _encodable(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A file name may hold bytes that are not text."""
    return {
        key: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for key, value in fields.items()
    }


def _one_line(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A file name may hold whole lines, or words that a terminal obeys: none of them may reach it."""
    return {
        key: printable(value) if isinstance(value, str) and key != "exception" else value
        for key, value in fields.items()
    }
