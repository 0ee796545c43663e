"""The harness of the memory broker: the model of the state machine, and an example for authors of brokers."""

from __future__ import annotations

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.testing.conformance.harness import FakeClock, Harness


class MemoryHarness(Harness):
    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        super().__init__(config, clock)
        self.memory = MemoryBroker(config, clock=self.clock)
        self.broker = self.memory

    def open(self) -> FullBroker:
        return self.broker

    def push_raw(self, queue: str, raw: bytes) -> None:
        with self.memory.store.lock:
            self.memory.store.push(queue, raw, front=False)
            self.memory.store.wake()

    def schedule_raw(self, raw: bytes, due_ms: int) -> None:
        self.memory.store.scheduled[raw] = due_ms

    def remove_registration(self, slot: str) -> None:
        self.memory.store.slots[slot].info = None

    def remove_record(self, id: str) -> None:
        self.memory.store.delete_record(id)

    def remove_raw(self, place: str, raw: bytes, slot: str = "") -> None:
        store = self.memory.store
        if place == "scheduled":
            del store.scheduled[raw]
        elif place == "processing":
            assert store.slots[slot].raw == raw
            store.slots[slot].raw = None
        elif place == "dead_letter":
            store.dead.remove(raw)
        else:
            store.queues[place].remove(next(item for item in store.queues[place] if item[1] == raw))

    def change_counter(self, name: str, by: int) -> None:
        self.memory.store.counters[name] += by
