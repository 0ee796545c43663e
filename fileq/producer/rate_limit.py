"""How fast jobs may be enqueued: the pauses of the shared rate limit, and the back-pressure of `max_pending`.

The broker counts the permits, because all producers share them. This module only remembers until when to wait.
"""

from __future__ import annotations

import random

from msgspec import Struct

from fileq.config import Config

DEFAULT_ON_REDIS = 100
JITTER_S = 0.02  # spreads producers that wait for the end of the same window
PRESSURE_PAUSE_S = 0.5
RATE_LIMIT, MAX_PENDING = "producer.rate_limit_per_sec", "producer.max_pending"


def permits_per_window(config: Config) -> int:
    """The limit in force; 0 means none. Without a setting only Redis has one, because others may share the server."""
    limit = config.producer.rate_limit_per_sec
    if limit is None:
        return DEFAULT_ON_REDIS if config.broker_kind == "redis" else 0
    return limit


class Hold(Struct, frozen=True):
    """A setting limits enqueueing, and has done so without a break since then."""

    reason: str
    since_s: float


class Throttle:
    """Until when enqueueing must wait, and the setting that causes it (`hold`). The caller passes the time."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self.hold: Hold | None = None

    def window_is_full(self, now_s: float, wait_ms: int) -> None:
        """Waits until the window ends: an earlier call would be refused, a later one would waste permits."""
        self._wait(RATE_LIMIT, now_s, wait_ms / 1000 + random.uniform(0, JITTER_S))

    def too_many_pending(self, now_s: float) -> None:
        self._wait(MAX_PENDING, now_s, PRESSURE_PAUSE_S)

    def _wait(self, reason: str, now_s: float, wait_s: float) -> None:
        self._until_s = now_s + wait_s
        if self.hold is None or self.hold.reason != reason:
            self.hold = Hold(reason, now_s)

    def left_s(self, now_s: float) -> float:
        """Seconds still to wait; 0 when enqueueing may continue."""
        return max(0.0, self._until_s - now_s)

    def clear(self) -> None:
        """A call was accepted completely: at the moment no setting slows enqueueing down."""
        self.hold = None
