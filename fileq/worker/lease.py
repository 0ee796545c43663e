"""The lease of a duty that one process does for all workers of a broker, such as looking for dead slots.

It only saves work: two processes that do the same duty do no harm, because every step of it can be repeated. Of two
workers in one process, as during a reload, both have the leases of the process.

What a kill -9 leaves: a lease that ends by itself. A process of the same machine takes it at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from fileq.brokers.local_processes import Neighbours, process_of, this_holder
from fileq.brokers.protocol import Broker
from fileq.core.errors import BrokerError

ENDS_AFTER = 3  # rounds that its holder misses


class Lease:
    """Asked for or renewed every `every_s`, by the caller's own turns."""

    def __init__(
        self, broker: Broker, name: str, every_s: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.every_s = every_s
        self._broker = broker
        self._name = name
        self._monotonic = monotonic
        self._is_mine = False
        self._asks_s = float("-inf")

    def is_mine(self) -> bool:
        """Whether this process does the duty now. Raises BrokerUnavailable; then another process may do it."""
        now_s = self._monotonic()
        if now_s >= self._asks_s:
            self._is_mine = False
            self._is_mine = self._asked()
            self._asks_s = now_s + 0.9 * self.every_s  # the turns of a caller do not come to the millisecond
        return self._is_mine

    def _asked(self) -> bool:
        own, ttl_ms = this_holder(), round(ENDS_AFTER * self.every_s * 1000)
        holder = self._broker.lease(self._name, own, ttl_ms)
        if holder != own and Neighbours().is_gone(process_of(holder)):
            holder = self._broker.lease(self._name, own, ttl_ms, instead_of=holder)
        return holder == own

    def give_back(self, pause_s: float = 0.0) -> None:
        """Another process takes it. This one asks for it again after the pause, at the earliest."""
        self._asks_s = self._monotonic() + pause_s
        if self._is_mine:
            self._is_mine = False
            with suppress(BrokerError):
                self._broker.lease(self._name, this_holder(), 0)
