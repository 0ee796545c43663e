"""The producer as a service: its turns run in a thread of their own, and its reports to the broker in another one.

The watches are closed after the last turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fileq.brokers.protocol import ProducerRegistry
from fileq.config import Config
from fileq.core.events import Emit
from fileq.producer.producer import Producer
from fileq.producer.producer_report import ProducerReport
from fileq.runtime.service import Loop, longest_pause_s, without_outages

REMOVE_TIMEOUT_S = 1.0  # at a stop; after it the report ends with its lease


class ReportLoop(Loop):
    """Reports a producer every few seconds and removes the report at the end."""

    def __init__(
        self,
        config: Config,
        producer: Producer,
        registry: ProducerRegistry,
        *,
        emit: Emit,
        is_turning: Callable[[], bool] = lambda: True,
    ) -> None:
        report = ProducerReport(config, producer, registry, emit=emit, is_turning=is_turning)
        pause_s = longest_pause_s(config.worker.heartbeat_ttl)
        super().__init__(report, emit=without_outages(emit), longest_pause_s=pause_s)

    def stop(self, timeout_s: float) -> None:
        super().stop(min(timeout_s, REMOVE_TIMEOUT_S))


class ProducerService(Loop):
    def __init__(self, config: Config, producer: Producer, registry: ProducerRegistry, *, emit: Emit) -> None:
        super().__init__(producer, emit=emit, longest_pause_s=longest_pause_s(config.worker.heartbeat_ttl))
        self._producer = producer
        self._report = ReportLoop(config, producer, registry, emit=emit, is_turning=super().is_turning)

    def start(self) -> None:
        super().start()
        self._report.start()

    def quiet(self) -> None:
        super().quiet()
        self._report.quiet()

    def stop(self, timeout_s: float) -> None:
        super().stop(timeout_s)
        self._report.stop(timeout_s)
        if self.has_stopped:
            self._producer.close()

    def problem(self) -> str:
        return super().problem() or self._producer.finder.problem

    def is_turning(self) -> bool:
        return super().is_turning() and self._report.is_turning()


@contextmanager
def reported(config: Config, producer: Producer, registry: ProducerRegistry, *, emit: Emit) -> Iterator[None]:
    """For a producer that turns in the calling thread, as with `--once`."""
    loop = ReportLoop(config, producer, registry, emit=emit)
    loop.start()
    try:
        yield
    finally:
        loop.stop(REMOVE_TIMEOUT_S)
