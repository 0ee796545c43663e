"""The memory broker's orders: file_orders.FileOrders over a MemoryStore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fileq.brokers.file_orders import Order
from fileq.brokers.memory.store import MemoryStore
from fileq.core.job import State


class MemoryFileOrders:
    _store: MemoryStore

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        store = self._store
        with store.lock:
            before_ms = store.begin() - older_than_ms
            found = [
                order for order in store.orders.values() if order.at_ms < before_ms or order.slot not in store.registry
            ]
        yield from found

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        with self._store.lock:
            self._store.begin()
            return [self._finish_order(id, path) for id, path in done]

    def _finish_order(self, id: str, path: bytes) -> bool:
        self._store.orders.pop(id, None)
        record = self._store.records.get(id)
        if record is None or record.state not in (State.COMPLETED, State.DEAD):
            return False
        record.moved_to = path or record.moved_to
        return True
