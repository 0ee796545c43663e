"""Puts a worker together: the pump with all it needs, and the reaper and the scheduler that run beside it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.config import Config, Loaded
from fileq.core.breaker import Breaker
from fileq.core.events import Emit
from fileq.handlers.routes import Routes
from fileq.runtime.handlers_program import handlers_program
from fileq.runtime.loop import Loop
from fileq.runtime.outage import longest_pause_s
from fileq.runtime.service import Service
from fileq.runtime.worker_service import WorkerService
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.pump import Pump
from fileq.worker.reaper import Reaper
from fileq.worker.roots import RootsWatch
from fileq.worker.scheduler import Scheduler

STUCK_MARGIN_S = 5.0


class Worker(Struct, frozen=True):
    """Stop the worker before the others: heartbeats and recoveries outlive running work."""

    service: WorkerService
    services: list[Service]
    breaker: Breaker
    roots: RootsWatch


def without_outages(emit: Emit) -> Emit:
    """All loops of a process meet the same outage; one of them tells of it."""

    def emit_rest(event: str, *, level: str = "info", **fields: Any) -> None:
        if event not in ("broker.lost", "broker.found"):
            emit(event, level=level, **fields)

    return emit_rest


def _stuck_s(config: Config) -> float:
    """A loop that has not turned for so long will not turn again: the broker may hold it up for one call, but not for
    longer, and restarting a worker because its broker is silent would help nobody."""
    redis = config.redis
    call_s = redis.dial_timeout + max(redis.read_timeout, redis.write_timeout)
    return max(config.worker.heartbeat_ttl, call_s + STUCK_MARGIN_S)


def build_worker(loaded: Loaded, broker: FullBroker, routes: Routes, *, app_dir: str, emit: Emit) -> Worker:
    config = loaded.config
    worker = config.worker
    pause_s = longest_pause_s(worker.heartbeat_ttl)

    def tell_change(old: str, new: str) -> None:
        emit("breaker.changed", level="warning" if new == "open" else "info", was=old, state=new)

    breaker = Breaker(config.circuit_breaker, on_change=tell_change)
    paths = config.paths
    roots = RootsWatch(paths.roots)
    program = handlers_program(config, handlers_are_set=loaded.is_set("handlers"), app_dir=app_dir)
    executor = ExecutorsByIsolation(worker, routes, program, emit=emit)
    pump = Pump(config, broker, executor, routes, paths, breaker, emit=emit)
    service = WorkerService(
        pump,
        executor,
        broker,
        breaker,
        roots_problem=roots.problem,
        emit=emit,
        idle_s=worker.brpoplpush_timeout,
        longest_pause_s=pause_s,
        stuck_s=_stuck_s(config),
    )
    reaper = Reaper(config, broker, emit=emit)
    scheduler = Scheduler(broker)
    loops: list[Service] = [
        Loop("scheduler", scheduler.turn, emit=without_outages(emit), longest_pause_s=pause_s),
        Loop("reaper", reaper.turn, emit=without_outages(emit), longest_pause_s=pause_s),
    ]
    roots.start()
    return Worker(service, [service, *loops], breaker, roots)
