"""How a call of a handler ended, as an outcome: what it returned as Done, what it raised as Failed. Never raises.

Everything here must survive a trip from a child to its parent: plain UTF-8 text of bounded length.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from fileq.config import format_duration
from fileq.core.errors import JobError, Permanent, Retry
from fileq.core.outcome import Done, Failed

LONGEST_RESULT = 64 * 1024  # bytes of JSON
LONGEST_ERROR = 4_000  # characters
LONGEST_DELAY_S = 36_500 * 86_400.0
_LONGEST_KIND = 100
_OWN = os.path.dirname(__file__) + os.sep


class TimedOut(JobError):
    """The attempt took longer than its timeout."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"timed out after {format_duration(timeout_s)}")


class CommandFailed(JobError):
    """A command ended with an exit code other than 0, or by a signal: `ending` is the code or the signal's name."""

    def __init__(self, message: str, ending: int | str) -> None:
        super().__init__(message)
        self.ending = ending


def done(value: Any) -> Done:
    """The result as JSON; one that can't be kept is dropped with a warning, and the job is done all the same."""
    if value is None:
        return Done()
    try:
        result = msgspec.json.encode(value)
    except Exception as error:
        return Done(warning=f"the result is not JSON and was dropped ({_described(error)})")
    if len(result) > LONGEST_RESULT:
        return Done(warning=f"the result has {len(result)} bytes of JSON and was dropped; {LONGEST_RESULT} are kept")
    return Done(result)


def failed(error: BaseException, give_up_on: Sequence[int | str] = ()) -> Failed:
    """The attempt as a failure; whether another is worth it is for the error and `give_up_on` to say."""
    try:
        return _failed(_unwrapped(error), give_up_on)
    except BaseException:  # what a handler raises is its own code too, down to its comparisons
        return Failed(_bounded(type(error).__name__, _LONGEST_KIND), "Error")


def one_line(text: str) -> str:
    """The text with its lines joined, fit for a list of errors."""
    return " | ".join(line for line in map(str.strip, text.splitlines()) if line)


def _failed(error: BaseException, give_up_on: Sequence[int | str]) -> Failed:
    is_permanent = isinstance(error, Permanent) or _gives_up(error, give_up_on)
    return Failed(
        _bounded(_described(error) + _location(error), LONGEST_ERROR),
        _kind(error),
        is_permanent=is_permanent,
        after_s=_delay_s(error.after_s) if isinstance(error, Retry) else None,
        is_sample=not is_permanent,
    )


def _described(error: BaseException) -> str:
    """`ValueError: message`, whatever str() makes of it."""
    if isinstance(error, CommandFailed | TimedOut):
        return str(error)
    try:
        message = one_line(str(error))
    except BaseException:
        message = "(its message can't be shown)"
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _kind(error: BaseException) -> str:
    if isinstance(error, CommandFailed):
        return f"exit {error.ending}" if isinstance(error.ending, int) else error.ending
    if isinstance(error, TimedOut):
        return "Timeout"
    return _bounded(type(error).__name__, _LONGEST_KIND)


def _bounded(text: str, longest: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _location(error: BaseException) -> str:
    """Where the handler was and where it was raised; what was raised on purpose, or by us, needs none."""
    if isinstance(error, JobError):
        return ""
    frames = list(_frames(error.__traceback__))
    ends = dict.fromkeys(frames[:1] + frames[-1:])
    return f" (at {', '.join(ends)})" if ends else ""


def _frames(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OWN):
            yield f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next


def _unwrapped(error: BaseException) -> BaseException:
    """A task group packs even a single exception: Permanent in it still means Permanent."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _gives_up(error: BaseException, give_up_on: Sequence[int | str]) -> bool:
    """Exceptions are matched as `except` would, by name: with their module or without it, and by what they inherit."""
    if not give_up_on:
        return False
    if isinstance(error, CommandFailed):
        return error.ending in give_up_on
    if isinstance(error, SystemExit) and error.code in give_up_on:
        return True
    classes = type(error).__mro__
    names = {cls.__name__ for cls in classes} | {f"{cls.__module__}.{cls.__qualname__}" for cls in classes}
    return not names.isdisjoint(name for name in give_up_on if isinstance(name, str))


def _delay_s(after: object) -> float | None:
    """The delay a handler asked for; None, which leaves it to the policy, for one that makes no sense."""
    if isinstance(after, bool) or not isinstance(after, int | float) or math.isnan(after):
        return None
    return min(max(0.0, float(after)), LONGEST_DELAY_S)
