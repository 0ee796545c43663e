"""Turns what a handler returned into Done and what it raised into Failed. Never raises.

A child process sends these outcomes to the worker, so every text in them is UTF-8 and bounded in length.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from fileq.core.errors import JobError, Permanent, Retry
from fileq.core.job import json_of
from fileq.core.outcome import Done, Failed
from fileq.core.units import LONGEST_S, format_duration
from fileq.handlers.tracebacks import stack_text_of, traceback_text

LONGEST_RESULT = 64 * 1024  # bytes of JSON
LONGEST_ERROR = 4_000  # characters
_LONGEST_KIND = 100
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CALLS_MIDDLEWARE = os.path.join(os.path.dirname(__file__), "run.py")


class TimedOut(JobError):
    """The attempt took longer than its timeout. The cause, if there is one, says where the handler was."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"timed out after {format_duration(timeout_s)}")


class CommandFailed(JobError):
    """A command exited with a code other than 0 or was killed: `status` is the code or the name of the signal. `hint`
    is what may help if the message does not; it is shown where a function's traceback would be."""

    def __init__(self, message: str, status: int | str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint


def done(value: Any, *, is_task: bool = False) -> Done:
    """The result as JSON. The callers of a task wait for its result, so one that can't be kept raises Permanent. That
    of another handler is dropped with a warning, and the job is done: its work is in files and databases."""
    if value is None:
        return Done()
    result = json_of(value)
    if isinstance(result, bytes) and len(result) > LONGEST_RESULT:
        result = f"has {len(result)} bytes of JSON, and {LONGEST_RESULT} are kept"
    if isinstance(result, bytes):
        return Done(result)
    if not is_task:
        return Done(warning=f"the result was dropped: it {result}")
    raise Permanent(
        f"the result of type {type(value).__name__} can't be kept: it {result}; return None, or a Struct, dict, list, "
        f"text or number of at most {LONGEST_RESULT} bytes of JSON"
    )


def failed(
    error: BaseException,
    give_up_on: Sequence[int | str] = (),
    retry_if: Callable[[BaseException], object] | None = None,
) -> Failed:
    """The attempt as a failure; permanent if the error is Permanent, matches `give_up_on`, or `retry_if` returns False.
    `retry_if` is not called for the errors that fileq defines, such as Retry and a timeout."""
    try:
        return _failed(error, give_up_on, retry_if)
    except BaseException:  # the exception's class is the user's code, and any method of it may raise
        name = _bounded(type(error).__name__, _LONGEST_KIND)
        return Failed(name, name)


def one_line(text: str) -> str:
    """The text with its non-empty lines joined by " | "."""
    return " | ".join(line for line in map(str.strip, text.splitlines()) if line)


def _failed(
    whole: BaseException, give_up_on: Sequence[int | str], retry_if: Callable[[BaseException], object] | None
) -> Failed:
    error = _unwrapped(whole)
    is_permanent = isinstance(error, Permanent) or _gives_up(error, give_up_on)
    if not is_permanent and retry_if is not None and not isinstance(error, JobError):
        is_permanent = not retry_if(error)
    return Failed(
        _bounded(_described(error) + _location(error), LONGEST_ERROR),
        _kind(error),
        is_permanent=is_permanent,
        after_s=_delay_s(error.after_s) if isinstance(error, Retry) else None,
        is_sample=not is_permanent,
        traceback=_details(error, whole),
    )


def _details(error: BaseException, whole: BaseException) -> str:
    if isinstance(error, CommandFailed):
        return error.hint
    return stack_text_of(error.__cause__) if isinstance(error, TimedOut) else traceback_text(whole)


def _described(error: BaseException) -> str:
    """`ValueError: message`, also when str() of the exception raises."""
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
        return f"exit {error.status}" if isinstance(error.status, int) else error.status
    if isinstance(error, TimedOut):
        return "Timeout"
    return _bounded(type(error).__name__, _LONGEST_KIND)


def _bounded(text: str, longest: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _location(error: BaseException) -> str:
    """The first and the last line of the user's code in the traceback; none for errors that fileq defines. Middleware
    through which the error only passed is left out: the handler's own line says more."""
    if isinstance(error, JobError):
        return ""
    frames: list[str] = []
    trace, has_passed = error.__traceback__, False
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OWN):
            if has_passed:
                frames, has_passed = [], False
            frames.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}")
        elif code.co_filename == _CALLS_MIDDLEWARE:
            has_passed = True  # but it may have raised itself, as for a second call(): then no frame follows
        trace = trace.tb_next
    ends = dict.fromkeys(frames[:1] + frames[-1:])
    return f" (at {', '.join(ends)})" if ends else ""


def _unwrapped(error: BaseException) -> BaseException:
    """A task group wraps even a single exception; Permanent inside it must still count as Permanent."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _gives_up(error: BaseException, give_up_on: Sequence[int | str]) -> bool:
    """Whether a name in `give_up_on`, with or without its module, is a class of the error or a base of it. Numbers
    match the exit codes of commands and of SystemExit; signal names match commands."""
    if not give_up_on:
        return False
    if isinstance(error, CommandFailed):
        return error.status in give_up_on
    if isinstance(error, SystemExit) and error.code in give_up_on:
        return True
    classes = type(error).__mro__
    names = {cls.__name__ for cls in classes} | {f"{cls.__module__}.{cls.__qualname__}" for cls in classes}
    return not names.isdisjoint(name for name in give_up_on if isinstance(name, str))


def _delay_s(after: object) -> float | None:
    """The delay that Retry carries, bounded; None, which means the policy's own delay, if it is not a number."""
    if isinstance(after, bool) or not isinstance(after, int | float) or math.isnan(after):
        return None
    return min(max(0.0, float(after)), LONGEST_S)
