"""What each role runs: services started together, stopped together, and the signals that do it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from fileq.brokers import examine, open_broker
from fileq.brokers.base import FullBroker
from fileq.config import Config, Loaded, describe_broker_choice
from fileq.errors import BrokerError, FileqError
from fileq.handlers.routes import Routes
from fileq.observe.http import open_endpoints
from fileq.observe.logs import set_up_logs
from fileq.observe.metrics import Metrics
from fileq.producer.once import produce_once, progress
from fileq.producer.producer import Producer, check_scan_dir
from fileq.producer.service import ProducerService
from fileq.service import Emit, Service
from fileq.signals import StopSignals
from fileq.worker.build import build_worker, without_outages

HURRY_S = 5.0  # for giving back what was under way


def run_producer(loaded: Loaded) -> int:
    """Scan, watch and enqueue until a signal comes."""
    config = loaded.config
    check_scan_dir(config)
    metrics = Metrics()
    emit = both(set_up_logs(config.observability.log_level, config.observability.log_format), metrics.emit)
    broker = start_broker(loaded, emit)
    try:
        producer = Producer(config, broker, broker, emit=emit)
        service = ProducerService(producer, emit=emit, longest_pause_s=longest_pause_s(config))
        run_until_signal([service], loaded, metrics, emit)
    finally:
        broker.close()
    return 0


def run_producer_once(loaded: Loaded) -> int:
    """One scan and a summary; no endpoints."""
    config = loaded.config
    check_scan_dir(config)
    emit = set_up_logs(config.observability.log_level, config.observability.log_format)
    broker = start_broker(loaded, emit)
    try:
        with progress(config.producer.rate_limit_key) as (tick, is_shown):
            producer = Producer(config, broker, broker, emit=without_info(emit) if is_shown else emit, is_once=True)
            summary = produce_once(producer, tick)
            producer.close()
    finally:
        broker.close()
    print(summary)
    if producer.problem:
        raise FileqError(f"{producer.problem}; what it holds was not all seen")
    return 0


def run_worker(loaded: Loaded, app_dir: str, *, is_producing: bool = False) -> int:
    """Claim and run until a signal comes; as `all`, scan and watch too."""
    config = loaded.config
    if is_producing:
        check_scan_dir(config)
    metrics = Metrics()
    emit = both(set_up_logs(config.observability.log_level, config.observability.log_format), metrics.emit)
    routes = load_routes(loaded, app_dir, emit)
    broker = start_broker(loaded, emit)
    try:
        worker = build_worker(loaded, broker, routes, app_dir=app_dir, emit=emit)
        services = list(worker.services)
        if is_producing:
            producer = Producer(config, broker, broker, emit=emit)
            quietly = without_outages(emit)
            services.append(ProducerService(producer, emit=quietly, longest_pause_s=longest_pause_s(config)))
        run_until_signal(services, loaded, metrics, emit)
    finally:
        broker.close()
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
    warn_of_dangers(broker, emit)
    return broker


def warn_of_dangers(broker: FullBroker, emit: Emit) -> None:
    """Settings of the server that lose data, and whatever else `fileq doctor` would call wrong about it."""
    try:
        findings = examine(broker)
    except BrokerError:
        return  # gone in this moment: those who use it will say so
    for finding in findings:
        if finding.is_sound is False:
            emit("broker.unsafe", level="warning", check=finding.name, reason=finding.detail, action=finding.advice)


def longest_pause_s(config: Config) -> float:
    """Between two tries of a lost broker: short enough that a heartbeat survives a short outage."""
    return config.worker.heartbeat_ttl / 6


def run_until_signal(services: Sequence[Service], loaded: Loaded, metrics: Metrics, emit: Emit) -> None:
    """First signal: quiet, then stop in time. Second: at once."""
    observability = loaded.config.observability
    with closing(StopSignals()) as signals:
        endpoints = open_endpoints(
            observability.metrics_bind,
            observability.metrics_port,
            services,
            metrics.text,
            is_port_chosen=loaded.is_set("observability.metrics_port"),
            emit=emit,
        )
        try:
            for service in services:
                service.start()
            emit("role.started", services=[service.name for service in services])
            signals.wait()
            emit("role.stopping")
            _stop(services, loaded.config.worker.shutdown_timeout, signals)
            emit("role.stopped")
        finally:
            for service in services:
                service.stop(0.0)
            endpoints.close()


def _stop(services: Sequence[Service], timeout_s: float, signals: StopSignals) -> None:
    """All of them within the time, or as far as they are at the second signal."""
    deadline_s = time.monotonic() + timeout_s

    def stop_all() -> None:
        for service in services:
            service.stop(max(0.0, deadline_s - time.monotonic()))
        signals.enough()

    for service in services:
        service.quiet()
    stopper = threading.Thread(target=stop_all, name="stop", daemon=True)
    stopper.start()
    if signals.wait():
        for service in services:
            service.hurry()
    stopper.join(HURRY_S)


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
