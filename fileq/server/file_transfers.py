"""The threads that read and write files for clients: a bounded number, apart from those that call the broker.

A disk that hangs holds these threads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fileq.server.broker_pool import BrokerPool
from fileq.server.problems import ApiProblem

T = TypeVar("T")
TRANSFERS_MAX = 16
DISK_S = 120.0


class FileTransfers:
    """Belongs to the event loop. A client has a slot() during its transfer, and makes one call() at a time."""

    def __init__(self) -> None:
        self._pool = BrokerPool(calls_max=TRANSFERS_MAX)
        self._running = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Raises ApiProblem if TRANSFERS_MAX clients have one."""
        self.take()
        try:
            yield
        finally:
            self.release()

    def take(self) -> None:
        if self._running >= TRANSFERS_MAX:
            detail = f"{TRANSFERS_MAX} files are being transferred; try again"
            raise ApiProblem("busy", detail, retry_after_s=5, headers={"Connection": "close"})
        self._running += 1

    def release(self) -> None:
        self._running -= 1

    async def call(self, work: Callable[[], T]) -> T:
        return await self._pool.call(work, timeout_s=DISK_S)
