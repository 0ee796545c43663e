"""The listeners of a process: logs, metrics and, if enabled, tracing. They are in the package `observe`.

Services emit events into `Observers.emit` and know nothing of the listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fileq.brokers.protocol import Inspector
from fileq.config import Config
from fileq.core.events import Emit, EmitAll, Event, one_by_one
from fileq.handlers.extensions import BoundHook
from fileq.observe.depths import DepthGauge
from fileq.observe.logs import Logs, set_up_logs
from fileq.observe.metrics import Metrics
from fileq.runtime.hook_runner import HookRunner
from fileq.runtime.worker_build import WorkerParts


class Observers:
    """Makes the listeners that the configuration asks for. `emit` passes an event to all of them, `emit_all` several
    events at once."""

    def __init__(self, config: Config) -> None:
        settings = config.observability
        self._queues = config.worker.priorities
        self.logs = set_up_logs(settings.log_level, settings.log_format)
        self.metrics = Metrics(self._queues)
        self.broker_problem: Callable[[], str] = lambda: ""
        self.is_hurried = False
        self._tracing = None
        self.emit_all = _to_logs_and_metrics(self.logs, self.metrics)
        self.emit = _singly(self.emit_all)
        self._hooks: HookRunner | None = None
        if settings.tracing.enabled:
            from fileq.observe.tracing import open_tracing

            self._tracing = open_tracing(config, self.logs)
            self.emit = self._tracing.around(self.emit)
            self.emit_all = one_by_one(self.emit)

    def watch_broker(self, broker: Inspector) -> None:
        gauge = DepthGauge(broker, self._queues)
        self.metrics.depths = gauge.read
        self.broker_problem = gauge.problem

    def watch_worker(self, worker: WorkerParts, slots: int) -> None:
        self.metrics.slots = lambda: slots if worker.service.is_turning() else 0
        self.metrics.breakers = worker.breakers.numbers
        self.metrics.deferred = worker.breakers.deferred_numbers

    def with_hooks(self, emit: Emit, hooks: Sequence[BoundHook]) -> tuple[Emit, EmitAll]:
        """`emit` and `emit_all` with these hooks behind them. Hooks are called in a thread of their own."""
        if not hooks:
            return emit, self.emit_all
        if self._hooks is None:
            self._hooks = HookRunner(self.emit)
        listener, emit_all = self._hooks.listener(hooks), self.emit_all

        def heard_all(events: Sequence[Event]) -> None:
            emit_all(events)
            for event in events:
                listener(event)

        return to_all(emit, listener), heard_all

    def close(self) -> None:
        if self._hooks is not None:
            self._hooks.close()
        if self._tracing is not None:
            self._tracing.close(is_hurried=self.is_hurried)


def _to_logs_and_metrics(logs: Logs, metrics: Metrics) -> EmitAll:
    """Without a call of `logs` for events below the log level: every job passes here."""
    written = logs.written

    def emit_all(events: Sequence[Event]) -> None:
        lines = [event for event in events if event.level in written]
        if lines:
            logs.write(lines)
        metrics.count(events)

    return emit_all


def _singly(emit_all: EmitAll) -> Emit:
    def emit(event: Event) -> None:
        emit_all((event,))

    return emit


def to_all(*listeners: Emit) -> Emit:
    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def log_to_stderr(config: Config) -> Emit:
    """Sets up logs for a command that runs a handler outside of a role; returns the listener that writes them."""
    return set_up_logs(config.observability.log_level, config.observability.log_format)
