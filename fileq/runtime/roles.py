"""The long-running roles: which services each one starts, and how signals stop them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import FrameType

from msgspec import Struct

from fileq.brokers import open_broker
from fileq.brokers.protocol import Broker, FullBroker, RemovableData
from fileq.config import Config, Loaded
from fileq.config.load import describe_broker_choice
from fileq.core import events
from fileq.core.errors import BrokerError, BrokerRemoved, FileqError
from fileq.core.events import Emit
from fileq.files.descriptor_limit import raise_limit
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.routes import Routes, made_job_problems, reload_routes, warnings_of
from fileq.observe.http import Endpoints
from fileq.producer.producer import Producer, check_scan_dir
from fileq.producer.producer_report import ProducerReport
from fileq.runtime.observers import Observers
from fileq.runtime.produce_once import live_line, produce_once, progress
from fileq.runtime.reload import Reloader
from fileq.runtime.service import Loop, Service, longest_pause_s, without_outages
from fileq.runtime.worker_build import BuiltInJobs, WorkerParts, build_worker

HURRY_S = 5.0  # how long giving back the running jobs may take
REMOVE_TIMEOUT_S = 1.0  # for the report of a producer at a stop; after it the report ends with its lease


def run_producer(loaded: Loaded, read: Callable[[], Loaded], app_dir: str) -> int:
    """Scans, watches and enqueues until a signal arrives. `read` reads the configuration again."""
    config = loaded.config
    check_scan_dir(config)
    before = load_before_enqueue(config, app_dir=app_dir)
    with closing(Observers(config)) as observers:
        emit = observers.emit
        warn_of_new_database(loaded, emit)
        with closing(start_broker(loaded, emit, "producer")) as broker:
            observers.watch_broker(broker)
            producer = Producer(config, broker, emit=emit, before_enqueue=before)
            loops = producer_loops(config, producer, broker, emit)
            run_until_signal(loops, Reloader(loaded, read, emit), observers, broker, FatalError())
    return 0


def run_producer_once(loaded: Loaded, app_dir: str) -> int:
    """One scan and a summary, without HTTP endpoints."""
    config = loaded.config
    check_scan_dir(config)
    before = load_before_enqueue(config, app_dir=app_dir)
    with closing(Observers(config)) as observers:
        warn_of_new_database(loaded, observers.emit)
        with (
            closing(start_broker(loaded, observers.emit)) as broker,
            live_line("scanning") as (show, is_shown),
        ):
            if is_shown:  # the progress line shows what the info lines would repeat
                observers.logs.demotes = lambda event: event.level == "info"
            producer = Producer(config, broker, emit=observers.emit, is_once=True, before_enqueue=before)
            report = report_loop(config, producer, broker, observers.emit)
            report.start()
            try:
                summary = produce_once(producer, lambda one: show(progress(one, config.producer.rate_limit_key)))
            finally:
                report.stop(REMOVE_TIMEOUT_S)
            producer.close()
        print(summary)
    if producer.finder.problem:
        raise FileqError(f"{producer.finder.problem}; the scan is incomplete")
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
        if observers.logs.is_console:  # one line for each file: the one that says how its job ended
            observers.logs.hold_output()
            if is_producing:
                observers.logs.demotes = lambda event: isinstance(event, events.JobProduced)
        routes = load_routes(loaded, app_dir, emit)
        before = load_before_enqueue(config, app_dir=app_dir) if is_producing else None
        fatal = FatalError()
        with closing(start_broker(loaded, emit, "all" if is_producing else "worker")) as broker:
            observers.watch_broker(broker)

            def build(loaded: Loaded, routes: Routes) -> WorkerParts:
                worker = build_worker(
                    loaded,
                    broker,
                    routes,
                    app_dir=app_dir,
                    emit_all=observers.with_hooks(routes.hooks),
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
                producer = Producer(config, broker, emit=emit, before_enqueue=before)
                services += producer_loops(config, producer, broker, without_outages(emit))
            if beside is not None:
                services.append(beside(broker, emit))
            reloader = Reloader(loaded, read, emit, worker=worker, services=services, rebuild=rebuild)
            run_until_signal(services, reloader, observers, broker, fatal, routes)
    return 0


def producer_loops(config: Config, producer: Producer, broker: FullBroker, emit: Emit) -> list[Loop]:
    """The turns of a producer in a thread of their own, and its reports to the broker in another one."""
    pause_s = longest_pause_s(config.worker.heartbeat_ttl)
    turns = Loop(producer, emit=emit, longest_pause_s=pause_s, problem=lambda: producer.finder.problem)
    return [turns, report_loop(config, producer, broker, emit, is_turning=turns.is_turning)]


def report_loop(
    config: Config,
    producer: Producer,
    broker: FullBroker,
    emit: Emit,
    *,
    is_turning: Callable[[], bool] = lambda: True,
) -> Loop:
    """Reports a producer every few seconds and removes the report at the end."""
    report = ProducerReport(config, producer, broker, emit=emit, is_turning=is_turning)
    pause_s, quiet = longest_pause_s(config.worker.heartbeat_ttl), without_outages(emit)
    return Loop(report, emit=quiet, longest_pause_s=pause_s, longest_stop_s=REMOVE_TIMEOUT_S)


def load_routes(loaded: Loaded, app_dir: str, emit: Emit) -> Routes:
    """Imports and checks every handler, before the first claim."""
    routes = Routes.load(loaded.config, app_dir=app_dir)
    report_routes(routes, loaded, emit)
    return routes


def report_routes(routes: Routes, loaded: Loaded, emit: Emit) -> None:
    config = loaded.config
    for warning in (*routes.warnings, *warnings_of(config, routes), *made_job_problems(config, routes)):
        emit(events.HandlersWarned(warning))
    if not loaded.config.handlers_are_given and len(routes) <= 1:
        emit(events.HandlersUnset("files are only checksummed; set 'handlers' to process them"))


def start_broker(loaded: Loaded, emit: Emit, role: str = "") -> FullBroker:
    """Opens the broker and reports which one it is, where, and which setting chose it. `role`: as for open_broker().

    Variables that are probably misspelt are reported before: one of them may have been meant to choose the broker."""
    for variable, similar in loaded.misspelt_env.items():
        emit(events.VariableIgnored(variable, f"it names no setting; did you mean {similar}?"))
    broker = open_broker(loaded.config, role=role)
    emit(events.BrokerOpened(broker.kind, broker.where, describe_broker_choice(loaded)))
    warn_if_unsafe(broker, emit)
    return broker


def warn_of_new_database(loaded: Loaded, emit: Emit) -> None:
    """For a producer of its own: a worker that reads another database would never get its jobs."""
    if warning := loaded.new_database_warning("give --config or FILEQ_CONFIG"):
        emit(events.DatabaseCreated(warning))


def warn_if_unsafe(broker: FullBroker, emit: Emit) -> None:
    """Reports what `fileq doctor` would mark as wrong about the broker, such as settings that lose data."""
    try:
        findings = broker.examine()
    except BrokerError:
        return  # the broker has just become unreachable; the services report that
    for finding in findings:
        if finding.status == "wrong":
            emit(events.BrokerUnsafe(finding.name, finding.detail, finding.advice))


def run_until_signal(
    services: Sequence[Service],
    reloader: Reloader,
    observers: Observers,
    broker: FullBroker,
    fatal: FatalError,
    routes: Routes | None = None,
) -> None:
    """Runs until the first signal, then stops within `shutdown_timeout`; a second signal stops at once. SIGHUP reloads.
    Raises the fatal error if one is reported: the broker's data is gone, or the worker has failed."""
    raise_limit()
    observability, emit = reloader.loaded.config.observability, observers.emit
    with closing(StopSignals(reloads=True)) as signals:
        watch = broker_watch(broker, fatal.report, emit)
        endpoints = Endpoints(
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
            if watch is not None:
                watch.start()
            count, handlers = (len(routes), routes.names) if routes is not None else (None, None)
            scan_dir, names = reloader.loaded.config.producer.scan_dir, [service.name for service in services]
            emit(events.RoleStarted(scan_dir, broker.kind, count, handlers, names))
            signals.on_hangup = reloader.reload
            fatal.wake_with(signals.end_wait)
            signals.wait()
            signals.on_hangup = None
            emit(events.RoleStopping(signals.last_name))
            services = [*reloader.retired, *services]
            if fatal.error is not None:
                for service in services:
                    service.hurry()
                raise fatal.error
            timeout_s = reloader.loaded.config.worker.shutdown_timeout
            observers.is_hurried = stop_in_time(services, timeout_s, signals)
            emit(events.RoleStopped())
        finally:
            for service in services:
                service.stop(0.0)
            if watch is not None:
                watch.stop(CHECK_EVERY_S)
            endpoints.close()


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


CHECK_EVERY_S = 1.0


class BrokerWatch(Struct):
    """Ends a role when the data of its broker is deleted or replaced, such as the file of an SQLite database: calls
    `on_removed` once, with the reason. Reports a server that has lost data. Checks once a second.

    Without it a process would go on with the deleted file, and a producer without work would not notice at all. A Redis
    that comes back empty would look like one that was away."""

    broker: RemovableData
    on_removed: Callable[[BrokerRemoved], None]
    emit: Emit
    name: str = "broker watch"

    def turn(self) -> float:
        try:
            if lost := self.broker.check_present():
                self.emit(events.BrokerDataRemoved(lost))
        except BrokerRemoved as error:
            self.emit(events.BrokerDataRemoved(str(error)))
            self.on_removed(error)
            raise
        return CHECK_EVERY_S


def broker_watch(broker: Broker, on_removed: Callable[[BrokerRemoved], None], emit: Emit) -> Loop | None:
    """None for a broker that can't lose its data that way."""
    if not isinstance(broker, RemovableData):
        return None
    return Loop(BrokerWatch(broker, on_removed, emit), emit=without_outages(emit), longest_pause_s=CHECK_EVERY_S)


class FatalError:
    """The error that ends a role from inside: the broker's data is gone, or the worker's loop has failed. Keeps the
    first one that is reported, and wakes the thread that waits for signals. Threads share it."""

    def __init__(self) -> None:
        self.error: FileqError | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None

    def report(self, error: FileqError) -> None:
        with self._lock:
            self.error = self.error or error
            if self._wake is not None:
                self._wake()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Calls `wake` for each report from now on, and for one that came before."""
        with self._lock:
            self._wake = wake
            if self.error is not None:
                wake()


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_WAIT = b"\0"  # no signal has this number


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP as something to wait for, without missing one. Created and closed in the main thread.
    Signals that arrive after close() are ignored.

    Without `reloads` SIGHUP stops too. With it, wait() calls `on_hangup` for each SIGHUP and goes on waiting. A
    terminal sends SIGHUP when its window is closed, so for a process with a terminal it is a request to stop. A process
    that was started with SIGHUP ignored (nohup) keeps ignoring it.

    A threading.Event set by a signal handler is not enough. A signal that arrives while the main thread enters wait()
    is noticed only with the next signal, or its handler deadlocks on the Event's lock, which the interrupted thread
    holds. Here the interpreter itself writes one byte per signal into a socket, at once and from any thread."""

    def __init__(self, *, reloads: bool = False) -> None:
        self.on_hangup: Callable[[], None] | None = None
        self.last_name: str | None = None  # of the signal that ended the last wait()
        self._numbers: tuple[signal.Signals, ...] = STOP_SIGNALS
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers = (*STOP_SIGNALS, signal.SIGHUP)
        self._hangup = bytes([signal.SIGHUP]) if reloads and not has_terminal() else None
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, _do_nothing)

    def wait(self) -> bool:
        """Waits for the next signal to stop (True) or for end_wait() (False)."""
        while (received := self._reader.recv(1)) == self._hangup:
            if self.on_hangup is not None:
                self.on_hangup()
        self.last_name = signal.Signals(received[0]).name if received != _END_WAIT else None
        return self.last_name is not None

    def end_wait(self) -> None:
        """Makes wait() return False. Any thread may call it."""
        with contextlib.suppress(OSError):  # closed: wait() has returned already
            self._writer.send(_END_WAIT)

    def close(self) -> None:
        """Ignores the signals from now on. A Python handler would not be enough: the interpreter restores the default
        action when it shuts down, and a late signal would then end the program with -15 instead of its exit code."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Without a Python handler the interpreter would not write the byte."""
