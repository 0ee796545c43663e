"""How one attempt ended. Executors make outcomes; the retry policy turns them into settlements.

Values only. They are tagged, so that a child process can send them to its parent as JSON or MessagePack.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fileq.core.follow_up import Made


class Done(Struct, frozen=True, tag=True, omit_defaults=True):
    """The handler returned. `warning` says why its result could not be kept; "" if it could. `made` is what it leaves
    behind besides its result; None if that is nothing, as for most jobs."""

    result: bytes = b""
    warning: str = ""
    made: Made | None = None


class Failed(Struct, frozen=True, tag=True):
    """The attempt failed: an exception, a timeout, too much memory, a command's exit code.

    `kind` is the error's class, for the counters. `is_sample` says whether the circuit breaker counts the failure.
    `is_vanished`: no handler ran, because the file no longer exists, although its root does.
    `traceback` has the user's frames; "" if the handler raised nothing. `output` is the end of what it printed."""

    error: str
    kind: str
    is_permanent: bool = False
    after_s: float | None = None
    is_sample: bool = True
    is_vanished: bool = False
    traceback: str = ""
    output: str = ""


class Refused(Struct, frozen=True, tag=True):
    """No attempt was made: not a job, no handler for its type, or its deadline is over. The job is dead."""

    error: str
    kind: str


# How the cause begins if the whole worker died. A reaper finds that out later; on another machine, long after it.
WORKER_DIED = "its worker died ("
CRASHED = "crashed: "  # how the error of every other death begins


class Died(Struct, frozen=True, tag=True):
    """The process that ran the handler ended by a signal or an exit that fileq did not cause. `output` as in Failed."""

    cause: str
    output: str = ""

    @property
    def error(self) -> str:
        """`crashed: the process of the handler exited with status 7`: which process it was, in plain words."""
        if self.cause.startswith(WORKER_DIED):
            return self.cause
        if self.cause.startswith("the fork server "):
            return f"{CRASHED}{self.cause}"
        return f"{CRASHED}the process of the handler {'was ' * self.cause.startswith('killed by ')}{self.cause}"


class Changed(Struct, frozen=True, tag=True):
    """Nothing was run: the file is another version now, the one with this signature."""

    signature: str


class Cancelled(Struct, frozen=True, tag=True):
    """The cancellation was requested, and the handler has stopped; or the job was cancelled before it began, for this
    reason. `raised` is an error of the handler while it stopped, which counts for nothing and is only logged."""

    reason: str = "cancelled"
    raised: Failed | None = None


class Released(Struct, frozen=True, tag=True):
    """The handler was stopped because the worker stops. Neither a failure nor a recovery is counted. `raised` as in
    Cancelled."""

    raised: Failed | None = None


FinalOutcome: TypeAlias = Done | Failed | Refused | Died | Cancelled | Released
Outcome: TypeAlias = FinalOutcome | Changed
