"""What `admit` takes and returns: whether a claimed job of a limited route may run now. Frozen values."""

from __future__ import annotations

import enum

from msgspec import Struct


class AdmitRequest(Struct, frozen=True):
    """A claimed job of a limited route, which asks to run. A limit of 0 is none.

    At most `max_running_total` jobs of the route run, and at most `rate` of them start in a window of `window_ms`."""

    route: str
    slot: str
    raw: bytes
    max_running_total: int = 0
    rate: int = 0
    window_ms: int = 1000


class AdmitResult(enum.StrEnum):
    """What `admit` answered to one request."""

    ADMITTED = "admitted"
    FULL = "full"  # as many jobs of the route run as `max_running_total` allows
    THROTTLED = "rate"  # as many jobs of the route have started in this window as `rate` allows
    LOST = "lost"  # the slot does not hold this job (any more): it must not run


class Admission(Struct, frozen=True):
    """The reply to one request of `admit`."""

    result: AdmitResult
    wait_ms: int = 0  # when to ask again: the rest of the window for a rate; 0 if the job was admitted
