"""Logging for handlers, in structlog's style, in any process.

Lines go to structlog where the process has configured it. Elsewhere (in a test, for example) each line is one JSON
object on stderr. Never raises because a line could not be written.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any


class Log:
    """A logger with some fields bound: log.info("page.read", page=3)."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """The same logger with more fields on every line."""
        return Log({**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write("error", event, {**fields, "exception": traceback.format_exc().rstrip()})

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        fields = {**self._fields, **fields}
        # Not imported here: a process that has not imported structlog has not configured it either.
        structlog = sys.modules.get("structlog")
        # stderr may be closed, its disk may be full, or the process may have none.
        with contextlib.suppress(OSError, ValueError):
            if structlog is not None and structlog.is_configured():
                getattr(structlog.get_logger(), level)(event, **fields)
            elif level != "debug" and sys.stderr is not None:
                _write_json({**fields, "event": event, "level": level, "timestamp": _now()})


def _write_json(fields: dict[str, Any]) -> None:
    # json.dumps writes ASCII only: the encoding of stderr may not be able to write every file name.
    sys.stderr.write(json.dumps(fields, default=repr) + "\n")
    sys.stderr.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
