"""Threads for what waits for something other than the broker: files of clients, and receivers of webhooks.

Each kind of work has a bounded number of threads of its own, apart from those that call the broker, so a disk or a
receiver that hangs holds these only.
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
TESTS_MAX = 4
TESTS_OF_ONE = 2
TEST_S = 30.0  # a receiver has 20 s to answer


class SlowWork:
    """Belongs to the event loop. A client has one of the slots during its work, and makes one call() at a time."""

    def __init__(self, what: str, most: int, most_of_one: int, timeout_s: float) -> None:
        self._pool = BrokerPool(calls_max=most)
        self._timeout_s = timeout_s
        self.slots = Share(what, most, most_of_one)

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Raises ApiProblem if the caller, or all together, have too many."""
        self.slots.take(caller)
        try:
            yield
        finally:
            self.slots.give_back(caller)

    async def call(self, work: Callable[[], T]) -> T:
        return await self._pool.call(work, timeout_s=self._timeout_s)


def file_transfers() -> SlowWork:
    return SlowWork("transfers of files", TRANSFERS_MAX, TRANSFERS_OF_ONE, DISK_S)


def webhook_tests() -> SlowWork:
    return SlowWork("tests of webhooks", TESTS_MAX, TESTS_OF_ONE, TEST_S)
