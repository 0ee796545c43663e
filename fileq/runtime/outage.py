"""How a loop lives through an outage of its broker: told once at the start, once at the end, tried again in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fileq.core.errors import BrokerError
from fileq.core.events import Emit

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0  # whoever watches a broker come back expects its workers to be back within three


def longest_pause_s(heartbeat_ttl_s: float) -> float:
    """Between two tries of a lost broker: short enough that a heartbeat survives a short outage."""
    return min(LONGEST_PAUSE_S, heartbeat_ttl_s / 6)


class Outage:
    """One loop's view of its broker."""

    def __init__(self, emit: Emit, longest_pause_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._longest_pause_s = longest_pause_s
        self._monotonic = monotonic
        self._since_s: float | None = None
        self._tries = 0
        self.reason = ""

    def met(self, error: BrokerError) -> float:
        """The broker is away, or refuses; seconds to pause before the next try, growing, not the same for everybody."""
        if self._since_s is None:
            self._since_s = self._monotonic()
            self._emit("broker.lost", level="warning", error=str(error))
        self.reason = str(error)
        pause_s = min(self._longest_pause_s, FIRST_PAUSE_S * float(2**self._tries))
        self._tries = min(self._tries + 1, 16)
        return pause_s * random.uniform(0.5, 1.0)

    def over(self) -> None:
        """A call went through."""
        if self._since_s is not None:
            self._emit("broker.found", seconds=round(self._monotonic() - self._since_s, 3))
            self._since_s, self._tries, self.reason = None, 0, ""
