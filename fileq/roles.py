"""What each role runs: services started together, stopped together, and the signals that do it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from fileq.breaker import STATE_NUMBERS
from fileq.brokers import open_broker
from fileq.brokers.base import FullBroker, Inspector
from fileq.config import Config, Loaded, describe_broker_choice
from fileq.errors import FileqError
from fileq.handlers.routes import Routes
from fileq.observe.depths import DepthGauge
from fileq.observe.http import open_endpoints
from fileq.observe.logs import set_up_logs, written_levels
from fileq.observe.metrics import Metrics
from fileq.outage import longest_pause_s
from fileq.producer.once import produce_once, progress
from fileq.producer.producer import Producer, check_scan_dir
from fileq.producer.service import ProducerService
from fileq.service import Emit, Service
from fileq.signals import StopSignals
from fileq.worker.build import Worker, build_worker, without_outages

HURRY_S = 5.0  # for giving back what was under way


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


def run_producer(loaded: Loaded) -> int:
    """Scan, watch and enqueue until a signal comes."""
    config = loaded.config
    check_scan_dir(config)
    with closing(Observers(config)) as observers:
        emit = observers.emit
        with closing(start_broker(loaded, emit)) as broker:
            observers.watch_broker(broker)
            producer = Producer(config, broker, broker, emit=emit)
            pause_s = longest_pause_s(config.worker.heartbeat_ttl)
            run_until_signal([ProducerService(producer, emit=emit, longest_pause_s=pause_s)], loaded, observers)
    return 0


def run_producer_once(loaded: Loaded) -> int:
    """One scan and a summary; no endpoints."""
    config = loaded.config
    check_scan_dir(config)
    with closing(Observers(config)) as observers:
        with (
            closing(start_broker(loaded, observers.emit)) as broker,
            progress(config.producer.rate_limit_key) as (tick, is_shown),
        ):
            emit = without_info(observers.emit) if is_shown else observers.emit
            producer = Producer(config, broker, broker, emit=emit, is_once=True)
            summary = produce_once(producer, tick)
            producer.close()
        print(summary)
    if producer.problem:
        raise FileqError(f"{producer.problem}; what it holds was not all seen")
    return 0


def run_worker(loaded: Loaded, app_dir: str, *, is_producing: bool = False) -> int:
    """Claim and run until a signal comes; as `all`, scan and watch too."""
    config = loaded.config
    if is_producing:
        check_scan_dir(config)
    with closing(Observers(config)) as observers:
        emit = observers.emit
        routes = load_routes(loaded, app_dir, emit)
        with closing(start_broker(loaded, emit)) as broker:
            observers.watch_broker(broker)
            worker = build_worker(loaded, broker, routes, app_dir=app_dir, emit=emit)
            observers.watch_worker(worker, config.worker.count)
            services = list(worker.services)
            if is_producing:
                producer = Producer(config, broker, broker, emit=emit)
                pause_s = longest_pause_s(config.worker.heartbeat_ttl)
                services.append(ProducerService(producer, emit=without_outages(emit), longest_pause_s=pause_s))
            run_until_signal(services, loaded, observers)
    return 0


def load_routes(loaded: Loaded, app_dir: str, emit: Emit) -> Routes:
    """Every handler imported and checked, before anything is claimed."""
    routes = Routes.load(loaded.config, handlers_are_set=loaded.is_set("handlers"), app_dir=app_dir)
    for warning in routes.warnings:
        emit("handlers.doubtful", level="warning", reason=warning)
    if not loaded.is_set("handlers") and len(routes) <= 1:
        emit("handlers.unset", level="warning", action="files are only checksummed; set 'handlers' to process them")
    return routes


def start_broker(loaded: Loaded, emit: Emit) -> FullBroker:
    """Every start says which broker it is on, where, and which setting chose it."""
    broker = open_broker(loaded.config)
    emit("broker.opened", broker=broker.kind, where=broker.where, chosen=describe_broker_choice(loaded))
    return broker


def run_until_signal(services: Sequence[Service], loaded: Loaded, observers: Observers) -> None:
    """First signal: quiet, then stop in time. Second: at once."""
    observability, emit = loaded.config.observability, observers.emit
    with closing(StopSignals()) as signals:
        endpoints = open_endpoints(
            observability.metrics_bind,
            observability.metrics_port,
            services,
            observers.metrics.text,
            broker_problem=observers.broker_problem,
            is_port_chosen=loaded.is_set("observability.metrics_port"),
            emit=emit,
        )
        try:
            for service in services:
                service.start()
            emit("role.started", services=[service.name for service in services])
            signals.wait()
            emit("role.stopping")
            observers.is_hurried = _stop(services, loaded.config.worker.shutdown_timeout, signals)
            emit("role.stopped")
        finally:
            for service in services:
                service.stop(0.0)
            endpoints.close()


def _stop(services: Sequence[Service], timeout_s: float, signals: StopSignals) -> bool:
    """All of them within the time, or as far as they are at the second signal; whether that came."""
    deadline_s = time.monotonic() + timeout_s

    def stop_all() -> None:
        for service in services:
            service.stop(max(0.0, deadline_s - time.monotonic()))
        signals.enough()

    for service in services:
        service.quiet()
    stopper = threading.Thread(target=stop_all, name="stop", daemon=True)
    stopper.start()
    is_hurried = signals.wait()
    if is_hurried:
        for service in services:
            service.hurry()
    stopper.join(HURRY_S)
    return is_hurried


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
