"""Requests to stop a running task, and the outcome of a task that got one. The same in processes and in threads."""

from __future__ import annotations

import enum

from fileq.core.outcome import Cancelled, Changed, Done, Failed, Released
from fileq.core.units import format_duration
from fileq.handlers.task import Ran
from fileq.worker.executors.protocol import TaskOutcome

TIMEOUT = "Timeout"  # the kind of the error
# How handlers stop if they are asked to, in the words of docs/handlers.md; TIMEOUT if they have to be stopped by force.
_USUAL = frozenset(("InterruptedError", "CancelledError", "KeyboardInterrupt", "Retry", TIMEOUT))
CANCEL_GRACE_S = 5.0  # from context.cancelled to the stop by force


class StopRequest(enum.Enum):
    NONE = enum.auto()
    CANCEL = enum.auto()  # the job was cancelled
    QUIT = enum.auto()  # the worker stops


def outcome_after(request: StopRequest, ran: Ran) -> TaskOutcome:
    """The outcome of a task that ended with `ran` after this request.

    When the worker stops, only a handler that finished counts. An exception or a killed command is most likely the
    reaction to context.cancelled, and a shutdown must not count as a failure of the job. An exception that is not the
    usual reaction is kept for the log: it may be a real error that happened while the handler stopped."""
    match request:
        case StopRequest.CANCEL:
            return Cancelled(raised=_unusual(ran))
        case StopRequest.QUIT if not isinstance(ran, Done | Changed):
            return Released(raised=_unusual(ran))
    return ran


def _unusual(ran: Ran) -> Failed | None:
    return ran if isinstance(ran, Failed) and ran.traceback and ran.kind not in _USUAL else None


def timed_out(timeout_s: float, stack: str = "") -> Failed:
    """`stack` is where the handler was."""
    return Failed(f"timed out after {format_duration(timeout_s)}", TIMEOUT, traceback=stack)
