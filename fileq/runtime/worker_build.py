"""Assembles a worker: the pump and everything it needs, and the reaper and the scheduler that run beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from fileq.brokers.lost_workers import LostSlot, note_lost
from fileq.brokers.protocol import FullBroker
from fileq.config import Config, Loaded
from fileq.core.errors import BrokerError, FileqError
from fileq.core.events import Emit, EmitAll, singly
from fileq.core.job import decode, wall_clock_ms
from fileq.core.outcome import Ran, Task
from fileq.handlers.context import CancelFlag
from fileq.handlers.routes import Routes
from fileq.runtime.handlers_program import handlers_program
from fileq.runtime.service import Loop, Service, Turning, longest_pause_s, without_outages
from fileq.runtime.worker_service import WorkerService
from fileq.webhooks.store import WebhookStore
from fileq.webhooks.subscriptions import Subscriptions, WebhookWatch
from fileq.worker.batch_reconciler import BatchReconciler
from fileq.worker.breakers import Breakers
from fileq.worker.deadlines import Deadlines
from fileq.worker.deferrals import RootsWatch
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.post_actions import OrderRecovery
from fileq.worker.pump import Gates, Pump
from fileq.worker.reaper import Reaper
from fileq.worker.scheduler import ScheduleFiring, Scheduler
from fileq.worker.settlements import FollowUps, rules_of

if TYPE_CHECKING:
    from fileq.webhooks.sender import DeliveryAttempts

# The handlers of fileq's own jobs, by type. They need a broker, so they run in the worker process.
BuiltInJobs: TypeAlias = Callable[[FullBroker, Config, Emit], Mapping[str, Callable[..., Any]]]


class WorkerParts(Struct, frozen=True):
    """`services` is in the order of stop(). Reaper and scheduler end at quiet(), while running jobs still finish."""

    service: WorkerService
    services: list[Service]
    breakers: Breakers
    roots: RootsWatch
    routes: Routes


def build_worker(
    loaded: Loaded,
    broker: FullBroker,
    routes: Routes,
    *,
    app_dir: str,
    emit_all: EmitAll,
    on_failure: Callable[[FileqError], None],
    built_in: BuiltInJobs | None = None,
    fires_schedules: bool = True,
) -> WorkerParts:
    """`on_failure` is called if the loop of the worker ends by an unexpected error."""
    config, named, emit = loaded.config, routes, singly(emit_all)
    if built_in is not None:
        routes = routes.with_built_in(built_in(broker, config, emit), config)
    takes_files = any(route.match is not None for route in routes)
    gates = Gates.of(config, routes, broker, are_roots_expected=takes_files and loaded.names_roots, emit=emit)
    deliveries = Deliveries(config, broker, emit)
    routes.enable_deliveries(deliveries.subscriptions)
    gates.breakers.has_deliveries = lambda: deliveries.subscriptions.is_any
    deliveries.watch.start()  # in effect before the first claim
    program = handlers_program(config, app_dir=app_dir)
    executor = ExecutorsByIsolation(
        config.worker, routes, program, deliver=deliveries.run, records=broker.records, emit=emit
    )
    reconciler = BatchReconciler(config, broker, emit=emit)
    on_dead, add = reconciler.note_dead, FollowUps(routes, config.paths).added
    pump = Pump(config, broker, executor, routes, gates, emit=emit, emit_all=emit_all, on_dead=on_dead)
    service = WorkerService(config, pump, executor, broker, gates, on_failure=on_failure, emit=emit)
    deadlines = Deadlines(config, broker, add_follow_ups=add, on_dead=on_dead, emit=emit)
    scheduler = Scheduler(
        broker,
        firing=ScheduleFiring(config, broker, emit=emit) if fires_schedules else None,
        cancel_requested=service.cancel_requested,
        deadline_reached=deadlines.wake.set,
        is_busy=lambda: pump.running_count > 0,
    )

    def note(slots: Sequence[LostSlot]) -> None:
        with suppress(BrokerError):  # their jobs are safe; operators only miss a note
            note_lost(broker, slots, wall_clock_ms())

    reaper = Reaper(config, broker, add_follow_ups=add, note_lost=note, on_dead=on_dead, emit=emit)
    watch, roots, deferrals = deliveries.watch, gates.roots, gates.deferrals
    turning: list[Turning] = [roots, scheduler, deadlines, reaper, watch, deferrals, reconciler]
    if rules_of(config.worker.after):
        turning.append(OrderRecovery(config, broker, roots, emit=emit))
    pause_s, quiet = longest_pause_s(config.worker.heartbeat_ttl), without_outages(emit)
    loops = [Loop(one, emit=quiet, longest_pause_s=pause_s) for one in turning]
    roots.start()
    return WorkerParts(service, [service, *loops], gates.breakers, roots, named)


# The webhooks of a worker: which are in effect, and one attempt of a delivery, in a thread.
#
# Imports the code that sends requests when the first delivery runs: a worker without webhooks does not need it. What a
# kill -9 leaves: deliveries in their slots. A reaper gives them back, and they are sent again.


class Deliveries:
    """`watch` is to be turned by a loop; `run` is for an executor."""

    def __init__(self, config: Config, broker: FullBroker, emit: Emit) -> None:
        self._settings = config.webhooks
        self._emit = emit
        self._store = WebhookStore(broker, config.webhooks, wall_clock_ms)
        self.subscriptions = Subscriptions(config.paths, config.worker.priorities[-1])
        self.watch = WebhookWatch(self._store, self.subscriptions, emit)
        self._lock = threading.Lock()
        self._attempts: DeliveryAttempts | None = None

    def run(self, task: Task, cancelled: CancelFlag) -> Ran:
        return self._loaded().run(decode(task.raw), cancelled.is_set)

    def _loaded(self) -> DeliveryAttempts:
        with self._lock:
            if self._attempts is None:
                from fileq.webhooks.sender import DeliveryAttempts, Sender

                known, sender = lambda: self.watch.known, Sender(self._settings)
                self._attempts = DeliveryAttempts(self._store, sender, known, self._emit, wall_clock_ms)
            return self._attempts
