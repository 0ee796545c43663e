"""Moves jobs whose time has come into their queues. Owns no thread; any number of them may run."""

from __future__ import annotations

from fileq.brokers.protocol import Broker

# Somebody else may schedule a job that is due at any moment, and nobody tells: so look this often at least.
LONGEST_PAUSE_S = 0.04
BATCH = 500


class Scheduler:
    name = "scheduler"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def turn(self) -> float:
        """Promote what is due; the seconds until there may be more."""
        promoted = self._broker.promote(BATCH)
        if promoted.count == BATCH:
            return 0.0
        if promoted.next_due_ms is None:
            return LONGEST_PAUSE_S
        return min(LONGEST_PAUSE_S, max(0.001, (promoted.next_due_ms - promoted.now_ms) / 1000))
