"""How one run of a handler ended. Executors make these values; the retry policy decides what follows from them.

Tagged, so that a child process can send them to its parent.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Done(Struct, frozen=True, tag=True):
    """The handler returned. `warning` says why its result could not be kept."""

    result: bytes = b""
    warning: str = ""


class Failed(Struct, frozen=True, tag=True):
    """The attempt failed: an exception, a timeout, too much memory, a command's exit code.

    `kind` is the error's name, for counting. `is_sample`: the failure counts for the circuit breaker."""

    error: str
    kind: str
    is_permanent: bool = False
    after_s: float | None = None
    is_sample: bool = True


class Refused(Struct, frozen=True, tag=True):
    """Nothing was run: the bytes are not a job, no handler takes it, or its deadline has passed. It becomes a dead
    letter, and no attempt is counted."""

    error: str
    kind: str


class Died(Struct, frozen=True, tag=True):
    """The process that ran it ended by a signal or an exit that fileq did not cause."""

    cause: str


class Changed(Struct, frozen=True, tag=True):
    """Nothing was run: the file is another version now, the one with this signature."""

    signature: str


class Cancelled(Struct, frozen=True, tag=True):
    """An operator cancelled the job, and its handler has stopped."""


class Released(Struct, frozen=True, tag=True):
    """It was stopped because the worker stops; nothing is counted against the job."""


FinalOutcome: TypeAlias = Done | Failed | Refused | Died | Cancelled | Released
Outcome: TypeAlias = FinalOutcome | Changed
