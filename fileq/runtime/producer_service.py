"""The producer as a service: its turns run in a thread of their own. It closes the watches after the last turn."""

from __future__ import annotations

from fileq.core.events import Emit
from fileq.producer.producer import Producer
from fileq.runtime.loop import Loop


class ProducerService(Loop):
    def __init__(self, producer: Producer, *, emit: Emit, longest_pause_s: float) -> None:
        super().__init__("producer", producer.turn, emit=emit, longest_pause_s=longest_pause_s, wake=producer.wake)
        self._producer = producer

    def stop(self, timeout_s: float) -> None:
        super().stop(timeout_s)
        if self.has_stopped:
            self._producer.close()

    def problem(self) -> str:
        return super().problem() or self._producer.problem
