"""How one run of a handler ended. Executors make these; the retry policy turns them into settlements.

Tagged, so that a child process can send them to its parent.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Done(Struct, frozen=True, tag=True):
    """The handler returned. `warning` tells what became of a result that could not be kept."""

    result: bytes = b""
    warning: str = ""
    is_superseded: bool = False


class Failed(Struct, frozen=True, tag=True):
    """The attempt failed: an exception, a timeout, too much memory, a command's exit code.

    `kind` is the error's name, for counting; `is_sample` says whether the breaker should hear of it."""

    error: str
    kind: str
    is_permanent: bool = False
    after_s: float | None = None
    is_sample: bool = True


class Refused(Struct, frozen=True, tag=True):
    """Nobody tried: these bytes, this type or this hour do not allow it. It is dead, and no attempt has failed."""

    error: str
    kind: str


class Died(Struct, frozen=True, tag=True):
    """The process that ran it ended by a signal or an exit that we did not cause."""

    cause: str


class Changed(Struct, frozen=True, tag=True):
    """Nothing was run: the file is another version now, the one with this signature."""

    signature: str


class Cancelled(Struct, frozen=True, tag=True):
    """Somebody asked for it, and it has stopped."""


class Released(Struct, frozen=True, tag=True):
    """It was stopped because the worker stops; nothing is held against it."""


Outcome: TypeAlias = Done | Failed | Refused | Died | Cancelled | Released
