"""The long-running roles: which services each one starts, and how signals stop them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import Loaded, describe_broker_choice
from fileq.core.errors import BrokerError, FileqError
from fileq.core.events import (
    BrokerOpened,
    BrokerUnsafe,
    Emit,
    Event,
    HandlersUnset,
    HandlersWarned,
    JobProduced,
    RoleStarted,
    RoleStopped,
    RoleStopping,
    VariableIgnored,
)
from fileq.files.descriptor_limit import raise_limit
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.routes import Routes, reload_routes, schedule_problems, warnings_of
from fileq.observe.http import open_endpoints
from fileq.producer.producer import Producer, check_scan_dir
from fileq.runtime.broker_watch import BrokerWatch
from fileq.runtime.fatal_error import FatalError
from fileq.runtime.live_worker import LiveWorker
from fileq.runtime.observers import Observers
from fileq.runtime.outage import without_outages
from fileq.runtime.produce_once import produce_once, progress
from fileq.runtime.producer_service import ProducerService, reported
from fileq.runtime.reload import Reloader
from fileq.runtime.service import Service
from fileq.runtime.signals import StopSignals
from fileq.runtime.worker_build import BuiltInJobs, WorkerParts, build_worker

HURRY_S = 5.0  # how long giving back the running jobs may take


def run_producer(loaded: Loaded, read: Callable[[], Loaded], app_dir: str) -> int:
    """Scans, watches and enqueues until a signal arrives. `read` reads the configuration again."""
    config = loaded.config
    check_scan_dir(config)
    before = load_before_enqueue(config, app_dir=app_dir)
    with closing(Observers(config)) as observers:
        emit = observers.emit
        with closing(start_broker(loaded, emit)) as broker:
            observers.watch_broker(broker)
            producer = Producer(config, broker, broker, emit=emit, before_enqueue=before)
            service = ProducerService(config, producer, broker, emit=emit)
            run_until_signal([service], Reloader(loaded, read, None, emit), observers, broker, FatalError())
    return 0


def run_producer_once(loaded: Loaded, app_dir: str) -> int:
    """One scan and a summary, without HTTP endpoints."""
    config = loaded.config
    check_scan_dir(config)
    before = load_before_enqueue(config, app_dir=app_dir)
    with closing(Observers(config)) as observers:
        with (
            closing(start_broker(loaded, observers.emit)) as broker,
            progress(config.producer.rate_limit_key) as (tick, is_shown),
        ):
            if is_shown:  # the progress line shows what the info lines would repeat
                observers.logs.demotes = is_info
            producer = Producer(config, broker, broker, emit=observers.emit, is_once=True, before_enqueue=before)
            with reported(config, producer, broker, emit=observers.emit):
                summary = produce_once(producer, tick)
            producer.close()
        print(summary)
    if producer.problem:
        raise FileqError(f"{producer.problem}; the scan is incomplete")
    return 0


def run_worker(
    loaded: Loaded,
    read: Callable[[], Loaded],
    app_dir: str,
    *,
    is_producing: bool = False,
    built_in: BuiltInJobs | None = None,
    beside: Callable[[FullBroker, Emit], Service] | None = None,
) -> int:
    """Claims and runs jobs until a signal arrives. `is_producing` (role `all`) also scans and watches. `read` reads the
    configuration again. `beside` makes a service that runs in the same process."""
    config = loaded.config
    if is_producing:
        check_scan_dir(config)
    with closing(Observers(config)) as observers:
        emit = observers.emit
        if is_producing and observers.logs.is_console:  # one line for each file: the one that says how its job ended
            observers.logs.demotes = lambda event: isinstance(event, JobProduced)
        routes = load_routes(loaded, app_dir, emit)
        before = load_before_enqueue(config, app_dir=app_dir) if is_producing else None
        fatal = FatalError()
        with closing(start_broker(loaded, emit)) as broker:
            observers.watch_broker(broker)

            def build(loaded: Loaded, routes: Routes) -> WorkerParts:
                heard, heard_all = observers.with_hooks(emit, routes.hooks)
                worker = build_worker(
                    loaded,
                    broker,
                    routes,
                    app_dir=app_dir,
                    emit=heard,
                    emit_all=heard_all,
                    on_failure=fatal.report,
                    built_in=built_in,
                )
                observers.watch_worker(worker, loaded.config.worker.count)
                return worker

            def rebuild(loaded: Loaded, serving: Routes) -> WorkerParts:
                routes = reload_routes(loaded.config, serving, app_dir=app_dir)
                report_routes(routes, loaded, emit)
                return build(loaded, routes)

            worker = build(loaded, routes)
            services = list(worker.services)
            if is_producing:
                producer = Producer(config, broker, broker, emit=emit, before_enqueue=before)
                services.append(ProducerService(config, producer, broker, emit=without_outages(emit)))
            if beside is not None:
                services.append(beside(broker, emit))
            live = LiveWorker(worker, services, rebuild)
            run_until_signal(services, Reloader(loaded, read, live, emit), observers, broker, fatal, routes)
    return 0


def load_routes(loaded: Loaded, app_dir: str, emit: Emit) -> Routes:
    """Imports and checks every handler, before the first claim."""
    routes = Routes.load(loaded.config, app_dir=app_dir)
    report_routes(routes, loaded, emit)
    return routes


def report_routes(routes: Routes, loaded: Loaded, emit: Emit) -> None:
    config = loaded.config
    for warning in (*routes.warnings, *warnings_of(config, routes), *schedule_problems(config, routes)):
        emit(HandlersWarned(warning))
    if not loaded.config.handlers_are_given and len(routes) <= 1:
        emit(HandlersUnset("files are only checksummed; set 'handlers' to process them"))


def start_broker(loaded: Loaded, emit: Emit) -> FullBroker:
    """Opens the broker and reports which one it is, where, and which setting chose it.

    Variables that are probably misspelt are reported before: one of them may have been meant to choose the broker."""
    for variable, similar in loaded.misspelt_env.items():
        emit(VariableIgnored(variable, f"it names no setting; did you mean {similar}?"))
    broker = open_broker(loaded.config)
    emit(BrokerOpened(broker.kind, broker.where, describe_broker_choice(loaded)))
    warn_if_unsafe(broker, emit)
    return broker


def warn_if_unsafe(broker: FullBroker, emit: Emit) -> None:
    """Reports what `fileq doctor` would mark as wrong about the broker, such as settings that lose data."""
    try:
        findings = broker.examine()
    except BrokerError:
        return  # the broker has just become unreachable; the services report that
    for finding in findings:
        if finding.is_sound is False:
            emit(BrokerUnsafe(finding.name, finding.detail, finding.advice))


def run_until_signal(
    services: Sequence[Service],
    reloader: Reloader,
    observers: Observers,
    broker: FullBroker,
    fatal: FatalError,
    routes: Routes | None = None,
) -> None:
    """Runs until the first signal, then stops within `shutdown_timeout`; a second signal stops at once.

    SIGHUP reloads. Raises the fatal error if one is reported: the broker's data is gone, or the worker has failed."""
    raise_limit()
    observability, emit = reloader.loaded.config.observability, observers.emit
    with closing(StopSignals(reloads=True)) as signals, closing(BrokerWatch(broker, fatal.report, emit)) as watch:
        endpoints = open_endpoints(
            observability.metrics_bind,
            observability.metrics_port,
            services,
            observers.metrics.text,
            broker_problem=observers.broker_problem,
            is_port_chosen=reloader.loaded.is_set("observability.metrics_port"),
            emit=emit,
        )
        try:
            for service in services:
                service.start()
            watch.start()
            emit(_started(services, reloader.loaded, broker, routes))
            signals.on_hangup = reloader.reload
            fatal.wake_with(signals.end_wait)
            signals.wait()
            signals.on_hangup = None
            emit(RoleStopping(signals.last_name))
            services = [*reloader.retired, *services]
            if fatal.error is not None:
                for service in services:
                    service.hurry()
                raise fatal.error
            timeout_s = reloader.loaded.config.worker.shutdown_timeout
            observers.is_hurried = stop_in_time(services, timeout_s, signals)
            emit(RoleStopped())
        finally:
            for service in services:
                service.stop(0.0)
            endpoints.close()


def _started(services: Sequence[Service], loaded: Loaded, broker: FullBroker, routes: Routes | None) -> RoleStarted:
    return RoleStarted(
        directory=loaded.config.producer.scan_dir,
        broker=broker.kind,
        routes=len(routes) if routes is not None else None,
        handlers=routes.names if routes is not None else None,
        services=[service.name for service in services],
    )


def stop_in_time(services: Sequence[Service], timeout_s: float, signals: StopSignals) -> bool:
    """Stops all services within the timeout. A second signal hurries them; returns whether it arrived."""
    deadline_s = time.monotonic() + timeout_s

    def stop_all() -> None:
        for service in services:
            service.stop(max(0.0, deadline_s - time.monotonic()))
        signals.end_wait()

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


def is_info(event: Event) -> bool:
    return event.level == "info"
