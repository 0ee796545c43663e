"""Orders on Redis: one hash, id of the job → time, slot and body.

A script compares the times with the server's clock and the slots with the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from fileq.brokers.file_orders import Order
from fileq.brokers.redis.store import RedisStore

BATCH = 1000
_PAGE = 500


class RedisFileOrders:
    """file_orders.FileOrders on Redis."""

    _store: RedisStore

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        store = self._store
        cursor = b"0"
        while True:
            cursor, rows = store.run("orders", (store.keys.orders,), (cursor, older_than_ms, _PAGE))
            for id, slot, at_ms, body in rows:
                yield Order(id.decode(errors="replace"), slot.decode(errors="replace"), int(at_ms), body)
            if cursor == b"0":
                return

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        pages = (done[start : start + BATCH] for start in range(0, len(done), BATCH))
        return [bool(n) for page in pages for n in self._finish(page)]

    def _finish(self, page: Sequence[tuple[str, bytes]]) -> Sequence[int]:
        keys = self._store.keys
        records = (keys.record(id) for id, _ in page)
        answers: Sequence[int] = self._store.run("finish_orders", (keys.orders, *records), tuple(chain(*page)))
        return answers
