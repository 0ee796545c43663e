"""The listeners of a process: logs, metrics and, if enabled, tracing, which are in the package `observe`; and hooks.

Services emit events into `Observers.emit` and know nothing of the listeners.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence

from fileq.brokers.protocol import Inspector
from fileq.config import Config
from fileq.core.events import Emit, EmitAll, Event, HookEventsDropped, HookFailed, JobClaimed, singly
from fileq.handlers.extensions import HOOK_EVENTS, EventView, Extension, view_of_event
from fileq.handlers.outcomes import failed
from fileq.observe.depths import DepthGauge
from fileq.observe.logs import Logs, set_up_logs
from fileq.observe.metrics import Metrics
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
        self._hooks: HookRunner | None = None
        self.emit_all = emit_all = _to_logs_and_metrics(self.logs, self.metrics)
        if settings.tracing.enabled:
            from fileq.observe.tracing import open_tracing

            self._tracing = tracing = open_tracing(config, self.logs)
            self.emit_all = lambda events: emit_all([tracing.traced(event) for event in events])
        self.emit: Emit = singly(self.emit_all)

    def watch_broker(self, broker: Inspector) -> None:
        gauge = DepthGauge(broker, self._queues)
        self.metrics.depths = gauge.read
        self.broker_problem = gauge.problem

    def watch_worker(self, worker: WorkerParts, slots: int) -> None:
        self.metrics.slots = lambda: slots if worker.service.is_turning() else 0
        self.metrics.breakers = worker.breakers.numbers
        self.metrics.deferred = worker.breakers.deferred_numbers

    def with_hooks(self, hooks: Sequence[Extension]) -> EmitAll:
        """`emit_all` with these hooks behind it. Hooks are called in a thread of their own."""
        if not hooks:
            return self.emit_all
        if self._hooks is None:
            self._hooks = HookRunner(self.emit)
        return followed_by(self._hooks.listener(hooks), self.emit_all)

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


def followed_by(listener: Emit, emit_all: EmitAll) -> EmitAll:
    """`emit_all` with a listener behind it."""

    def emit_to_both(events: Sequence[Event]) -> None:
        emit_all(events)
        for event in events:
            listener(event)

    return emit_to_both


def log_to_stderr(config: Config) -> Emit:
    """Sets up logs for a command that runs a handler outside of a role; returns the listener that writes them."""
    return set_up_logs(config.observability.log_level, config.observability.log_format)


QUEUE_MAX = 1_000
CLOSE_TIMEOUT_S = 2.0
REPORT_EVERY_S = 60.0


class HookRunner:
    """Calls hooks: in a thread of its own, one event after the other, after the fact. Best effort.

    No job waits for a hook. An error is reported and changes nothing. If hooks are slower than jobs, or one hangs, the
    queue is full after QUEUE_MAX events; later ones are dropped and counted. At the end the queue gets CLOSE_TIMEOUT_S;
    what is left then is dropped. A kill -9 loses the events in the queue. What must happen is a follow-up, not a hook.

    `emit` reports what is wrong with hooks; hooks never see those events. The thread starts with the first event."""

    def __init__(self, emit: Emit, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._monotonic = monotonic
        self._queue: queue.Queue[tuple[Sequence[Extension], EventView] | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = 0
        self._failures: dict[str, HookFailed] = {}  # by hook: what is still to be reported
        self._reported_s: dict[str, float] = {}  # by hook; "" for dropped events
        self._current: str | None = None  # the hook that is running

    def listener(self, hooks: Sequence[Extension]) -> Emit:
        names = {name for hook in hooks for name in hook.events}
        by_kind = {HOOK_EVENTS[name]: [hook for hook in hooks if name in hook.events] for name in names}

        def listen(event: Event) -> None:
            wanted = by_kind.get(type(event))
            if wanted is not None and not (isinstance(event, JobClaimed) and not event.is_run):
                self._add(wanted, view_of_event(event))

        return listen

    def close(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        until_s = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
            thread.join(max(0.0, until_s - time.monotonic()))
        except queue.Full:
            pass
        with self._lock:
            self._dropped += sum(call is not None for call in list(self._queue.queue))
            failures = list(self._failures.values())
        self._report_dropped(is_last=True)
        for failure in failures:
            self._emit(failure)

    def _add(self, hooks: Sequence[Extension], event: EventView) -> None:
        try:
            self._queue.put_nowait((hooks, event))
        except queue.Full:
            with self._lock:
                self._dropped += 1
            self._report_dropped()
            return
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            hooks, event = call
            for hook in hooks:
                self._call(hook, event)
            if self._dropped:
                self._report_dropped()

    def _call(self, hook: Extension, event: EventView) -> None:
        self._current = hook.target
        try:
            result = hook.function(event)
            if asyncio.iscoroutine(result):
                asyncio.run(result)
        except BaseException as error:  # SystemExit too: a hook ends neither its thread nor the worker
            self._report_failure(hook.target, event.name, failed(error).error)
        finally:
            self._current = None

    def _report_failure(self, hook: str, event_name: str, error: str) -> None:
        with self._lock:
            before = self._failures.pop(hook, None)
            failure = HookFailed(hook, event_name, error, 1 + (before.failures if before is not None else 0))
            if not self._is_due(hook):
                self._failures[hook] = failure
                return
        self._emit(failure)

    def _report_dropped(self, *, is_last: bool = False) -> None:
        with self._lock:
            if not self._dropped or not (self._is_due("") or is_last):
                return
            dropped, self._dropped = self._dropped, 0
        self._emit(HookEventsDropped(dropped, self._current))

    def _is_due(self, subject: str) -> bool:
        now_s = self._monotonic()
        last_s = self._reported_s.get(subject)
        if last_s is not None and now_s < last_s + REPORT_EVERY_S:
            return False
        self._reported_s[subject] = now_s
        return True
