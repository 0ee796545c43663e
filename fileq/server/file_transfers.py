"""The threads that read and write files for clients: a bounded number, apart from those that call the broker.

A disk that hangs holds these threads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fileq.server.broker_pool import BrokerPool
from fileq.server.shares import Share

T = TypeVar("T")
TRANSFERS_MAX = 16
TRANSFERS_OF_ONE = 8  # of one caller
DISK_S = 120.0


class FileTransfers:
    """Belongs to the event loop. A client has one of the slots during its transfer, and makes one call() at a time."""

    def __init__(self) -> None:
        self._pool = BrokerPool(calls_max=TRANSFERS_MAX)
        self.slots = Share("transfers of files", TRANSFERS_MAX, TRANSFERS_OF_ONE)

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Raises ApiProblem if the caller, or all together, have too many."""
        self.slots.take(caller)
        try:
            yield
        finally:
            self.slots.give_back(caller)

    async def call(self, work: Callable[[], T]) -> T:
        return await self._pool.call(work, timeout_s=DISK_S)
