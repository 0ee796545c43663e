"""Assembles a worker: the pump and everything it needs, and the reaper and the scheduler that run beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.lost_workers import LostSlot, note_lost
from fileq.brokers.protocol import FullBroker
from fileq.config import Config, Loaded
from fileq.core.errors import BrokerError, FileqError
from fileq.core.events import Emit, EmitAll
from fileq.core.job import decode_or_none
from fileq.core.outcome import Failed
from fileq.handlers.context import CancelFlag
from fileq.handlers.routes import Routes
from fileq.handlers.task import Ran, Task
from fileq.runtime.handlers_program import handlers_program
from fileq.runtime.service import Loop, Service, longest_pause_s, without_outages
from fileq.runtime.worker_service import WorkerService
from fileq.webhooks.store import WebhookStore
from fileq.webhooks.subscriptions import Subscriptions, WebhookWatch
from fileq.worker.batch_reconciler import BatchReconciler
from fileq.worker.breakers import Breakers, breakers_of
from fileq.worker.deadlines import Deadlines
from fileq.worker.deferrals import Deferrals, DeferredRelease
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.limits import Limits
from fileq.worker.post_actions import OrderRecovery
from fileq.worker.pump import Gates, Pump
from fileq.worker.reaper import Reaper
from fileq.worker.roots import RootsWatch
from fileq.worker.scheduler import ScheduleFiring, Scheduler
from fileq.worker.settlements import AddFollowUps, FollowUps, rules_of

if TYPE_CHECKING:
    from fileq.webhooks.attempt import DeliveryAttempts

STUCK_MARGIN_S = 5.0
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
    emit: Emit,
    emit_all: EmitAll | None = None,
    on_failure: Callable[[FileqError], None],
    built_in: BuiltInJobs | None = None,
    fires_schedules: bool = True,
) -> WorkerParts:
    """`emit_all` gets the events of a turn; without it they go to `emit` one by one. `on_failure` is called if the loop
    of the worker ends by an unexpected error."""
    config, named = loaded.config, routes
    worker = config.worker
    if built_in is not None:
        routes = routes.with_built_in(built_in(broker, config, emit), config)
    pause_s = longest_pause_s(worker.heartbeat_ttl)
    deferrals = Deferrals()
    breakers = breakers_of(
        routes, on_end=deferrals.end, deferred=deferrals.count, on_reset=deferrals.request_search, emit=emit
    )
    paths = config.paths
    takes_files = any(route.match is not None for route in routes)
    expects_roots = takes_files and loaded.names_roots
    roots = RootsWatch(paths.roots, paths.folders, emit=emit, on_end=deferrals.end, are_expected=expects_roots)
    program = handlers_program(config, app_dir=app_dir)
    deliveries = _deliveries(config, broker, routes, breakers, emit)
    executor = ExecutorsByIsolation(worker, routes, program, deliver=deliveries.run, records=broker.records, emit=emit)
    reconciler = BatchReconciler(config, broker, emit=emit)
    gates = Gates(breakers, Limits(routes, deferrals), roots, deferrals)
    pump = Pump(config, broker, executor, routes, gates, emit=emit, emit_all=emit_all, on_dead=reconciler.note_dead)
    service = WorkerService(
        pump,
        executor,
        broker,
        breakers,
        roots_problem=roots.problem,
        on_failure=on_failure,
        emit=emit,
        idle_s=worker.brpoplpush_timeout,
        longest_pause_s=pause_s,
        stuck_s=_stuck_s(config),
    )
    firing = ScheduleFiring(config, broker, emit=emit) if fires_schedules else None
    add = FollowUps(routes, paths).added
    deadlines = Deadlines(config, broker, add_follow_ups=add, on_dead=reconciler.note_dead, emit=emit)
    scheduler = Scheduler(
        broker, firing=firing, cancel_requested=service.cancel_requested, deadline_reached=deadlines.wake.set
    )
    loops = _loops(config, broker, roots, deferrals, scheduler, deadlines, deliveries.watch, reconciler, add, emit)
    roots.start()
    return WorkerParts(service, [service, *loops], breakers, roots, named)


def _loops(
    config: Config,
    broker: FullBroker,
    roots: RootsWatch,
    deferrals: Deferrals,
    scheduler: Scheduler,
    deadlines: Deadlines,
    webhooks: WebhookWatch,
    reconciler: BatchReconciler,
    add_follow_ups: AddFollowUps,
    emit: Emit,
) -> list[Service]:
    """What runs beside the pump, each in a thread of its own."""
    pause_s, quiet = longest_pause_s(config.worker.heartbeat_ttl), without_outages(emit)

    def note(slots: Sequence[LostSlot]) -> None:
        with suppress(BrokerError):  # their jobs are safe; operators only miss a note
            note_lost(broker, slots, wall_clock_ms())

    reaper = Reaper(
        config, broker, add_follow_ups=add_follow_ups, note_lost=note, on_dead=reconciler.note_dead, emit=emit
    )
    release = DeferredRelease(broker, deferrals)
    loops: list[Service] = [
        Loop("roots", roots.turn, emit=quiet, longest_pause_s=pause_s),
        Loop("scheduler", scheduler.turn, emit=quiet, longest_pause_s=pause_s, wake=scheduler.wake),
        Loop(deadlines.name, deadlines.turn, emit=quiet, longest_pause_s=pause_s, wake=deadlines.wake),
        Loop("reaper", reaper.turn, emit=quiet, longest_pause_s=pause_s),
        Loop(webhooks.name, webhooks.turn, emit=quiet, longest_pause_s=pause_s),
        Loop("deferred", release.turn, emit=quiet, longest_pause_s=pause_s, wake=deferrals.wake),
    ]
    loops.append(Loop(reconciler.name, reconciler.turn, emit=quiet, longest_pause_s=pause_s, wake=reconciler.wake))
    if rules_of(config.worker.after):
        recovery = OrderRecovery(config, broker, roots, emit=emit)
        loops.append(Loop(recovery.name, recovery.turn, emit=quiet, longest_pause_s=pause_s))
    return loops


def _deliveries(config: Config, broker: FullBroker, routes: Routes, breakers: Breakers, emit: Emit) -> Deliveries:
    """The webhooks, in effect before the first claim."""
    deliveries = Deliveries(config, broker, emit)
    routes.enable_deliveries(deliveries.subscriptions)
    breakers.has_deliveries = lambda: deliveries.subscriptions.is_any
    deliveries.watch.start()
    return deliveries


def _stuck_s(config: Config) -> float:
    """How long the worker's loop may stand still before /healthz calls it stuck.

    One call may wait for a silent broker until its timeouts. Restarting the worker for that would not help."""
    redis = config.redis
    call_s = redis.dial_timeout + max(redis.read_timeout, redis.write_timeout)
    return max(config.worker.heartbeat_ttl, call_s + STUCK_MARGIN_S)


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
        job = decode_or_none(task.raw)
        if job is None:
            return Failed("not a job", "Undecodable", is_permanent=True)
        return self._loaded().run(job, cancelled.is_set)

    def _loaded(self) -> DeliveryAttempts:
        with self._lock:
            if self._attempts is None:
                from fileq.webhooks.attempt import DeliveryAttempts
                from fileq.webhooks.sender import sender_of

                self._attempts = DeliveryAttempts(
                    self._store,
                    sender_of(self._settings),
                    lambda: self.watch.known,
                    emit=self._emit,
                    now_ms=wall_clock_ms,
                )
            return self._attempts
