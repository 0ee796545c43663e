"""How fast jobs may be enqueued: the shared rate limit's pauses, and the pause while too many wait."""

from __future__ import annotations

import random

from fileq.config import Config

DEFAULT_ON_REDIS = 100
JITTER_S = 0.02  # so that producers which were told the same moment do not all come at it
PRESSURE_PAUSE_S = 0.5
RATE_LIMIT, MAX_PENDING = "producer.rate_limit_per_sec", "producer.max_pending"


def permits_per_window(config: Config) -> int:
    """The limit in force; 0 is none. Unset, a broker that others share is spared."""
    limit = config.producer.rate_limit_per_sec
    if limit is None:
        return DEFAULT_ON_REDIS if config.broker_kind == "redis" else 0
    return limit


class Throttle:
    """Until when enqueueing must wait, and which setting says so. The clock is given."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self.reason = ""

    def window_is_full(self, now_s: float, wait_ms: int) -> None:
        """Sleep exactly until the window ends; asking earlier would be refused, later would waste permits."""
        self._until_s = now_s + wait_ms / 1000 + random.uniform(0, JITTER_S)
        self.reason = RATE_LIMIT

    def too_many_wait(self, now_s: float) -> None:
        self._until_s = now_s + PRESSURE_PAUSE_S
        self.reason = MAX_PENDING

    def left_s(self, now_s: float) -> float:
        """Seconds still to wait; 0 when enqueueing may go on."""
        return max(0.0, self._until_s - now_s)

    def lift(self) -> None:
        """What was sent went through: nothing holds it back."""
        self.reason = ""
