"""The memory broker's registry of producers: producer_registry.ProducerRegistry over a MemoryStore."""

from __future__ import annotations

from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.producer_types import ProducerInfo, ProducerView


class MemoryProducers:
    _store: MemoryStore

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            living = {view.id for view in store.living_producers(now_ms)}
            store.producers = {other: report for other, report in store.producers.items() if other in living}
            store.producers[id] = (now_ms + ttl_ms, info)

    def remove_producer(self, id: str) -> None:
        with self._store.lock:
            self._store.producers.pop(id, None)

    def producers(self) -> list[ProducerView]:
        with self._store.lock:
            return self._store.living_producers(self._store.begin())
