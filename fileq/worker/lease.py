"""The lease of a duty that one process does for all workers of a broker, such as looking for dead slots.

It only saves work: two processes that do the same duty do no harm, because every step of it can be repeated. Of two
workers in one process, as during a reload, both have the leases of the process.

What a kill -9 leaves: a lease that ends by itself. A process of the same machine takes it at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

from fileq.brokers.local_processes import Neighbours, process_of, this_holder
from fileq.brokers.protocol import Broker
from fileq.core.errors import BrokerError

ENDS_AFTER = 3  # rounds that its holder misses
# A process that is refused asks less and less often, and in a large fleet still less, or it would ask all the time. The
# neighbours of the holder on its machine see without a call that it is gone.
LONGEST_ASK_S = 5.0


class Lease:
    """Renewed every `every_s`, by the caller's own turns, and asked for as often at first."""

    def __init__(
        self, broker: Broker, name: str, every_s: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.every_s = every_s
        self._broker = broker
        self._name = name
        self._monotonic = monotonic
        self._is_mine = False
        self._holder = ""  # as of the last answer
        self._asks_s = self._looks_s = float("-inf")
        self._pause_s = every_s

    def is_mine(self) -> bool:
        """Whether this process does the duty now. Raises BrokerUnavailable; then another process may do it."""
        now_s = self._monotonic()
        is_due = now_s >= self._asks_s
        if is_due or (now_s >= self._looks_s and Neighbours().is_gone(process_of(self._holder))):
            self._is_mine = False
            self._is_mine = self._asked()
            longest_s = max(self.every_s, LONGEST_ASK_S) * self._broker.patience
            self._pause_s = self.every_s if self._is_mine else min(2 * self._pause_s, longest_s)
            # The turns of a caller do not come to the millisecond.
            self._asks_s = now_s + 0.9 * self._pause_s * (1.0 if self._is_mine else random.uniform(0.6, 1.0))
        if now_s >= self._looks_s:
            self._looks_s = now_s + 0.9 * self.every_s
        return self._is_mine

    def _asked(self) -> bool:
        own, ttl_ms = this_holder(), round(ENDS_AFTER * self.every_s * 1000)
        self._holder = self._broker.lease(self._name, own, ttl_ms)
        if self._holder != own and Neighbours().is_gone(process_of(self._holder)):
            self._holder = self._broker.lease(self._name, own, ttl_ms, instead_of=self._holder)
        return self._holder == own

    def give_back(self, pause_s: float = 0.0) -> None:
        """Another process takes it. This one asks for it again after the pause, at the earliest."""
        self._asks_s = self._monotonic() + pause_s
        if self._is_mine:
            self._is_mine = False
            with suppress(BrokerError):
                self._broker.lease(self._name, this_holder(), 0)
