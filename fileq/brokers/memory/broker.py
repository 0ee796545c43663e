"""The memory broker, put together: one store, and the groups of the protocol over it.

Each verb is written once, plainly, under one lock. It is the reference: where another broker answers differently,
that broker is wrong. Everything is lost when the process ends.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.memory.batches import MemoryBatches
from fileq.brokers.memory.catalog import MemoryCatalog
from fileq.brokers.memory.file_orders import MemoryFileOrders
from fileq.brokers.memory.inspector import MemoryInspector
from fileq.brokers.memory.producers import MemoryProducers
from fileq.brokers.memory.queues import MemoryQueues
from fileq.brokers.memory.repairer import MemoryRepairer
from fileq.brokers.memory.schedules import MemorySchedules
from fileq.brokers.memory.store import MemoryStore
from fileq.config import Config
from fileq.core.finding import Finding


class MemoryBroker(
    MemoryQueues,
    MemoryInspector,
    MemoryRepairer,
    MemoryProducers,
    MemoryFileOrders,
    MemoryCatalog,
    MemorySchedules,
    MemoryBatches,
):
    kind = "memory"
    where = "this process"

    def __init__(self, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._store = MemoryStore(config, clock=clock)

    @property
    def store(self) -> MemoryStore:
        """The back door of tests: what another program or a failover can do to a broker's contents."""
        return self._store

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Finds nothing: this broker depends on nothing outside its process."""
        return []

    def close(self) -> None:
        """Does nothing: no resource outlives the process."""
