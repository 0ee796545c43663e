"""The memory broker, put together: one store, and the groups of the protocol over it.

Each verb is written once, plainly, under one lock. It is the reference: where another broker answers differently,
that broker is wrong. Everything is lost when the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.memory.batches import MemoryBatches
from fileq.brokers.memory.inspector import MemoryInspector
from fileq.brokers.memory.queues import MemoryQueues
from fileq.brokers.memory.repairer import MemoryRepairer
from fileq.brokers.memory.schedules import MemorySchedules
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.protocol import Order
from fileq.brokers.types import ProducerInfo, ProducerView
from fileq.config import Config
from fileq.core.finding import Finding
from fileq.core.job import State

# The memory broker's catalog: catalog.Catalog over a MemoryStore.


class MemoryCatalog:
    _store: MemoryStore

    def documents(self, kind: str) -> dict[str, Document]:
        check_name("kind", kind)
        with self._store.lock:
            return dict(self._store.documents[kind])

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        return [self.documents(kind) for kind in kinds]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        with self._store.lock:
            was = self._store.documents[kind].get(name)
            if was is not None and was.body == body:
                return was.revision
            _check_expected(kind, name, was, expected)
            revision = self._next_revision(kind)
            self._store.documents[kind][name] = Document(body, revision)
            return revision

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        with self._store.lock:
            was = self._store.documents[kind].get(name)
            if was is None:
                return False
            _check_expected(kind, name, was, expected)
            self._next_revision(kind)
            del self._store.documents[kind][name]
            return True

    def catalog_revision(self, kind: str) -> int:
        check_name("kind", kind)
        with self._store.lock:
            return self._store.catalog_revisions[kind]

    def _next_revision(self, kind: str) -> int:
        self._store.catalog_revisions[kind] += 1
        return self._store.catalog_revisions[kind]


def _check_expected(kind: str, name: str, was: Document | None, expected: int | None) -> None:
    found = was.revision if was is not None else 0
    if expected is not None and expected != found:
        raise conflict(kind, name, expected, found)


# The memory broker's registry of producers: producer_registry.ProducerRegistry over a MemoryStore.


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


# The memory broker's orders: file_orders.FileOrders over a MemoryStore.


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
