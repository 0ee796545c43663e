"""What the verbs need of a backing beside a unit of work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter
from fileq.brokers.protocol import Subscription
from fileq.brokers.rules.unit_of_work import UnitOfWork
from fileq.config import Config


class Store(Protocol):
    config: Config
    queue_names: tuple[str, ...]
    order: ClaimOrder

    def unit_of_work(self) -> AbstractContextManager[UnitOfWork]:
        """One atomic step: its changes are written at the end, or none of them if the block raises. Wakes the waiters
        if a job was pushed."""

    def reading(self) -> AbstractContextManager[UnitOfWork]:
        """A consistent view. Nothing may be changed in it, and it waits for no unit of work."""

    def wake(self) -> None:
        """Wakes every waiter of this process."""

    def waiter(self) -> LocalWaiter: ...

    def subscribe(self) -> Subscription: ...
