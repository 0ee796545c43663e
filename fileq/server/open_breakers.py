"""The routes whose jobs workers hold back, for pages that show it beside something else. Only reads.

The registry has an entry for each slot of each worker, so it is read at most once in a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker

KEPT_S = 5.0


class OpenBreakers:
    """Threads may share it: two of them may read at the same time, and the later answer stays."""

    def __init__(self, broker: FullBroker, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._known: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    def routes(self) -> tuple[str, ...]:
        """Those with a breaker that is not closed, of any living worker. A round trip if the last is KEPT_S old."""
        read_s, routes = self._known
        now_s = self._monotonic()
        if now_s - read_s >= KEPT_S:
            living = (view for view in self._broker.workers() if view.is_alive)
            routes = tuple(sorted({breaker.route for view in living for breaker in view.info.breakers}))
            self._known = now_s, routes
        return routes
