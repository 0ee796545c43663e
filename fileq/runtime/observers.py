"""Who listens to the events of a process: logs, metrics and tracing. The only package that imports `observe`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fileq.brokers.protocol import Inspector
from fileq.config import Config
from fileq.core.breaker import STATE_NUMBERS
from fileq.core.events import Emit
from fileq.observe.depths import DepthGauge
from fileq.observe.logs import set_up_logs, written_levels
from fileq.observe.metrics import Metrics
from fileq.runtime.worker_build import Worker


class Observers:
    """Who listens in this process, and the channel to all of them."""

    def __init__(self, config: Config) -> None:
        settings = config.observability
        self._queues = config.worker.priorities
        log = set_up_logs(settings.log_level, settings.log_format)
        self.metrics = Metrics(self._queues)
        self.broker_problem: Callable[[], str] = lambda: ""
        self.is_hurried = False
        self._tracing = None
        self.emit = _to_logs_and_metrics(log, written_levels(settings.log_level), self.metrics)
        if settings.tracing.enabled:
            from fileq.observe.tracing import open_tracing

            self._tracing = open_tracing(config, log)
            self.emit = self._tracing.around(self.emit)

    def watch_broker(self, broker: Inspector) -> None:
        gauge = DepthGauge(broker, self._queues)
        self.metrics.depths = gauge.read
        self.broker_problem = gauge.problem

    def watch_worker(self, worker: Worker, slots: int) -> None:
        self.metrics.slots = lambda: slots if worker.service.is_turning() else 0
        self.metrics.breaker = lambda: STATE_NUMBERS[worker.breaker.state]

    def close(self) -> None:
        if self._tracing is not None:
            self._tracing.close(is_hurried=self.is_hurried)


def _to_logs_and_metrics(log: Emit, written: frozenset[str], metrics: Metrics) -> Emit:
    """Like both(), for the path that every job takes: what is not written is not handed over either."""
    hear = metrics.hear

    def emit(event: str, *, level: str = "info", **fields: Any) -> None:
        if level in written:
            log(event, level=level, **fields)
        hear(event, fields)

    return emit


def both(*listeners: Emit) -> Emit:
    def emit(event: str, *, level: str = "info", **fields: Any) -> None:
        for listener in listeners:
            listener(event, level=level, **fields)

    return emit


def without_info(emit: Emit) -> Emit:
    """For a terminal on which a line already shows the course of things: only what went wrong is told."""

    def emit_rest(event: str, *, level: str = "info", **fields: Any) -> None:
        emit(event, level="debug" if level == "info" else level, **fields)

    return emit_rest


def log_to_stderr(config: Config) -> None:
    """Sets up logs for a command that runs a handler without a role."""
    set_up_logs(config.observability.log_level, config.observability.log_format)
