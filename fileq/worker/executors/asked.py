"""What a running task was asked to do, and what that makes of its end; the same in processes and in threads."""

from __future__ import annotations

import enum

from fileq.core.outcome import Cancelled, Changed, Done, Failed, Released
from fileq.core.units import format_duration
from fileq.handlers.task import Ran

CANCEL_GRACE_S = 5.0  # between context.cancelled and the end by force


class Asked(enum.Enum):
    NOTHING = enum.auto()
    TO_STOP = enum.auto()  # somebody cancelled the job
    TO_QUIT = enum.auto()  # the worker stops


def ending(asked: Asked, ran: Ran) -> Ran | Cancelled | Released:
    """How the task ended, given what it was asked.

    When the worker stops, only what was done counts: an exception or a killed command is most likely the answer to
    context.cancelled, and no failure is held against a job because of a shutdown."""
    match asked:
        case Asked.TO_STOP:
            return Cancelled()
        case Asked.TO_QUIT if not isinstance(ran, Done | Changed):
            return Released()
    return ran


def timed_out(timeout_s: float) -> Failed:
    return Failed(f"timed out after {format_duration(timeout_s)}", "Timeout")
