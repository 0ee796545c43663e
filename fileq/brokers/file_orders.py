"""What a broker promises about orders: what a worker still has to do with the file of a job that has ended.

An order comes with the settlement that ends the job (`Settlement.order`) and is kept in the same atomic step. It is
removed when it is done. The order of a worker that died stays, so another worker finds it and does it. The rules of
protocol.py hold here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct


class Order(Struct, frozen=True):
    """An order of a job. Brokers do not read `body`."""

    id: str  # the id of the job, which has one order at most: a later settlement replaces it
    slot: str  # the slot that settled the job
    at_ms: int  # when it settled the job
    body: bytes


class FileOrders(Protocol):
    """Two workers may do the same order at the same time: it must be written so that this does no harm."""

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        """Every order whose slot is not registered, or that is older than this. Only reads, page by page.

        An order that is added or removed during the iteration may be missed."""
        ...

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Removes the order of each job (id, path), and writes the path to its record: the file is there now. An empty
        path is not written.

        False for a job that is not completed or dead; its record stays as it is. Such a job was put back into its
        queue, which has removed its order already.

        Atomicity: each job. Repeat: the same. Kill -9: each order is there and its record has the old path, or the
        order is removed and the record has the new one."""
        ...
