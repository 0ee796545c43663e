"""The harness of the memory broker, the model of the state machine; also an example for authors of brokers."""

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
        with self.memory.store.unit_of_work() as work:
            work.queued.push(queue, raw, front=False)

    def schedule_raw(self, raw: bytes, due_ms: int) -> None:
        self._change("INSERT INTO scheduled (due_ms, raw) VALUES (?, ?)", due_ms, raw)

    def remove_registration(self, slot: str) -> None:
        self._change("UPDATE slots SET info = NULL WHERE slot = ?", slot)

    def remove_record(self, id: str) -> None:
        self._change("DELETE FROM records WHERE id = ?", id)

    def remove_raw(self, place: str, raw: bytes, slot: str = "") -> None:
        if place == "processing":
            self._change("UPDATE slots SET held = NULL WHERE held = ? AND slot = ?", raw, slot)
        elif place in ("scheduled", "dead_letter"):
            self._change(f"DELETE FROM {place.removesuffix('_letter')} WHERE raw = ?", raw)
        else:
            self._change("DELETE FROM queued WHERE queue = ? AND raw = ?", place, raw)

    def change_counter(self, name: str, by: int) -> None:
        self._change("UPDATE stats SET value = value + ? WHERE name = ?", by, name)

    def _change(self, sql: str, *values: object) -> None:
        """Runs a statement that must change exactly one row."""
        with self.memory.store.database.transaction() as db:
            assert db.execute(sql, values).rowcount == 1
