"""What one task has printed: each line becomes an event while the handler runs, and the end is kept for its record.

Bounded, however much a handler prints: 8 KiB are kept, a line is cut at 4 KiB, and at most 200 lines a second become
events. The others are counted, and one event a second reports their number. Nothing is stored for a task that succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from fileq.core.events import Emit, HandlerOutputSkipped, HandlerPrinted, OutputIds, output_ids
from fileq.core.job import decode_or_none
from fileq.core.outcome import Died, Failed
from fileq.handlers.tail import Tail
from fileq.handlers.task import Ran, Task

TAIL = 8 * 1024  # bytes of UTF-8
LONGEST_LINE = 4 * 1024  # bytes
LINES_A_SECOND = 200
_MARK = "…"


class TaskOutput:
    """`task` is None for what a child prints between two tasks. Any thread may call any method."""

    def __init__(self, task: Task | None, emit: Emit, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._task = task
        self._emit = emit
        self._monotonic = monotonic
        self._ids: OutputIds | None = None
        self._tail = Tail(TAIL - len(_MARK.encode()))
        self._line = bytearray()  # the beginning of a line whose end is still to come
        self._second_s = float("-inf")  # when the current second began
        self._line_count = 0  # events in this second
        self._skipped = 0
        # Reentrant: a listener may use `logging` itself.
        self._lock = threading.RLock()

    def write(self, data: bytes) -> None:
        """Takes any part of what was printed."""
        with self._lock:
            self._tail.add(data)
            now_s = self._monotonic()
            start = 0
            while (end := data.find(b"\n", start)) >= 0:
                if not self._has_room(now_s):
                    self._skipped += data.count(b"\n", start)
                    self._line.clear()
                    start = data.rfind(b"\n") + 1
                    break
                self._begin_line(data[start:end])
                self._end_line()
                start = end + 1
            self._begin_line(data[start:])

    def log(self, level: str, logger: str, text: str) -> None:
        """Takes one record of `logging`, which may have several lines."""
        encoded = text.encode("utf-8", "backslashreplace")
        with self._lock:
            self._tail.add(encoded + b"\n")
            if self._has_room(self._monotonic()):
                self._report(_cut(encoded), level, logger)
            else:
                self._skipped += 1

    def end(self) -> str:
        """Reports what is left, and returns the last 8 KiB of everything."""
        with self._lock:
            if self._line and self._has_room(self._monotonic()):
                self._end_line()
            self._report_skipped()
            text = self._tail.text().rstrip("\n")
        encoded = text.encode()
        if len(encoded) <= TAIL:
            return text
        # Bytes that are not UTF-8 become characters of three bytes.
        return _MARK + encoded[len(_MARK.encode()) - TAIL :].decode(errors="ignore")

    def _begin_line(self, part: bytes) -> None:
        self._line += part[: LONGEST_LINE + 1 - len(self._line)]

    def _end_line(self) -> None:
        # As on a terminal: of a progress bar that returns to the start of its line the last state stays.
        shown = bytes(self._line).rstrip(b"\r").rpartition(b"\r")[2]
        self._line.clear()
        if shown.strip():
            self._report(_cut(shown), "info", None)

    def _report(self, text: str, level: str, logger: str | None) -> None:
        self._line_count += 1
        self._emit(HandlerPrinted(*self._named(), text, level, logger))

    def _has_room(self, now_s: float) -> bool:
        """Whether one more line may become an event in this second."""
        if now_s - self._second_s >= 1.0:
            self._report_skipped()
            self._second_s, self._line_count = now_s, 0
        return self._line_count < LINES_A_SECOND

    def _report_skipped(self) -> None:
        if self._skipped:
            self._emit(HandlerOutputSkipped(*self._named(), self._skipped))
            self._skipped = 0

    def _named(self) -> OutputIds:
        if self._ids is None:
            task = self._task
            known = (decode_or_none(task.raw), task.key.slot) if task is not None else (None, None)
            self._ids = output_ids(*known)
        return self._ids


def with_output(ran: Ran, output: str) -> Ran:
    """The outcome with what its handler printed, if it is one that keeps it: a failure or a death."""
    if output and isinstance(ran, Failed | Died):
        return msgspec.structs.replace(ran, output=output)
    return ran


def _cut(line: bytes) -> str:
    if len(line) <= LONGEST_LINE:
        return line.decode("utf-8", "replace")
    return line[:LONGEST_LINE].decode("utf-8", "ignore") + _MARK
