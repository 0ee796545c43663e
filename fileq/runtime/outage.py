"""How a loop behaves while its broker is unreachable: it reports the outage once, and retries with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fileq.core.errors import BrokerError
from fileq.core.events import BrokerLost, BrokerRestored, Emit, Event

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0  # operators expect workers to be back within three seconds of the broker


def longest_pause_s(heartbeat_ttl_s: float) -> float:
    """The longest pause between two tries, short enough that heartbeats survive a short outage."""
    return min(LONGEST_PAUSE_S, heartbeat_ttl_s / 6)


class Outage:
    """The state of the broker as one loop sees it."""

    def __init__(self, emit: Emit, longest_pause_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._longest_pause_s = longest_pause_s
        self._monotonic = monotonic
        self._since_s: float | None = None
        self._tries = 0
        self.reason = ""

    def failed(self, error: BrokerError) -> float:
        """Notes a failed call. Returns the seconds to wait before the next try: growing, with jitter."""
        if self._since_s is None:
            self._since_s = self._monotonic()
            self._emit(BrokerLost(str(error)))
        self.reason = str(error)
        pause_s = min(self._longest_pause_s, FIRST_PAUSE_S * float(2**self._tries))
        self._tries = min(self._tries + 1, 16)
        return pause_s * random.uniform(0.5, 1.0)

    def ended(self) -> None:
        """Notes a successful call."""
        if self._since_s is not None:
            self._emit(BrokerRestored(round(self._monotonic() - self._since_s, 3)))
            self._since_s, self._tries, self.reason = None, 0, ""


def without_outages(emit: Emit) -> Emit:
    """For all loops of a process but one: they meet the same outage of the broker, and one report is enough."""

    def emit_others(event: Event) -> None:
        if not isinstance(event, BrokerLost | BrokerRestored):
            emit(event)

    return emit_others
