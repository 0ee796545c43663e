"""Where the output of handlers goes: a sink of their task or process, or the real streams if nothing captures it.

A child process has one sink for its tasks, if its output is captured. In the worker's own process each task in a thread
has a sink of its own, which a context variable names.

Records of Python's `logging` that a handler would write to stdout or stderr go to the sink with their level, in the
form that the handler chose. So no record appears twice, and logging.basicConfig() works as in any program. If a handler
configures nothing, its records from level info on are captured, where Python would print those from warning on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class OutputSink(Protocol):
    def write(self, data: bytes) -> None:
        """Takes what was printed; any part of a line."""
        ...

    def log(self, level: str, logger: str, text: str) -> None:
        """Takes one record of `logging`; `level` is debug, info, warning or error."""
        ...


task_sink: ContextVar[OutputSink | None] = ContextVar("task_sink", default=None)  # of a task in a thread
_process_sinks: list[OutputSink] = []
_plain_emit = logging.StreamHandler.emit


def current_sink() -> OutputSink | None:
    """Where output of the calling code goes; None if it is not captured."""
    return task_sink.get() or (_process_sinks[-1] if _process_sinks else None)


@contextmanager
def uncaptured() -> Iterator[None]:
    """In this block, what the calling code prints is not output of a task in a thread."""
    token = task_sink.set(None)
    try:
        yield
    finally:
        task_sink.reset(token)


def set_process_sink(sink: OutputSink) -> None:
    """All output of this process goes there, and stays there until the process ends."""
    _process_sinks.append(sink)


def capture_logging() -> None:
    """Send records that would be written to stdout or stderr to the sink. May be called twice. Call it after the
    handlers are imported: their modules may configure logging."""
    if logging.StreamHandler.emit is not _plain_emit:
        return
    root = logging.getLogger()
    if not root.handlers and root.level == logging.WARNING:
        root.setLevel(logging.INFO)
    if logging.lastResort is not None:  # what Python uses while nothing is configured
        logging.lastResort.setLevel(logging.NOTSET)
    logging.StreamHandler.emit = _emit  # type: ignore[method-assign,assignment]


def _emit(handler: logging.StreamHandler, record: logging.LogRecord) -> None:  # type: ignore[type-arg]
    sink = current_sink()
    if sink is None or not any(handler.stream is stream for stream in _standard_streams()):
        # Outside of a task everything stays as Python does it.
        if handler is not logging.lastResort or record.levelno >= logging.WARNING:
            _plain_emit(handler, record)
        return
    try:
        text = handler.format(record)
    except Exception:
        handler.handleError(record)
        return
    sink.log(_level(record.levelno), record.name, text)


def _standard_streams() -> tuple[object, ...]:
    current = (sys.stdout, sys.stderr)
    # What a module found at its import, before the streams were replaced.
    earlier = (getattr(stream, "uncaptured", None) for stream in current)
    return tuple(stream for stream in (*current, *earlier, sys.__stdout__, sys.__stderr__) if stream is not None)


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


class Tail:
    """The last bytes of a stream, for records and errors: bounded, however much is written."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.is_cut = False

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        if len(self._kept) > self._limit:
            del self._kept[: -self._limit]
            self.is_cut = True

    def text(self) -> str:
        kept = bytes(self._kept)
        if self.is_cut:
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that was cut
        return ("…" if self.is_cut else "") + kept.decode("utf-8", "replace")
