"""Promotes jobs that are due from `scheduled` to their queues. Owns no thread; any number of schedulers may run.

What a kill -9 leaves: each due job promoted or not; any other scheduler promotes the rest.
"""

from __future__ import annotations

from fileq.brokers.protocol import Broker

# Another process may schedule a job that is due at once, and sends no notice of it. So this is the longest pause.
LONGEST_PAUSE_S = 0.04
BATCH = 500


class Scheduler:
    name = "scheduler"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def turn(self) -> float:
        """Promotes the jobs that are due. Returns the seconds until the next turn."""
        promoted = self._broker.promote(BATCH)
        if promoted.count == BATCH:
            return 0.0
        if promoted.next_due_ms is None:
            return LONGEST_PAUSE_S
        return min(LONGEST_PAUSE_S, max(0.001, (promoted.next_due_ms - promoted.now_ms) / 1000))
