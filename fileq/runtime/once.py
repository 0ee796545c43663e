"""`fileq all --once`: scans once, processes until no job can run any more, exits. For cron and CI.
`fileq worker --once` is the same without the scan.

A thread does the work; the main thread waits for signals. After the first signal no job is claimed and running jobs may
finish within `shutdown_timeout`. After the second, running jobs go back to their queues at once. In both cases nothing
is left for a reaper.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import chain

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, OpenBreaker, Record
from fileq.config import Loaded
from fileq.core import events
from fileq.core.errors import BrokerUnavailable, FileqError
from fileq.core.events import EmitAll, Event, singly
from fileq.core.job import State, decode_or_none
from fileq.core.text import printable
from fileq.core.units import short_duration
from fileq.core.webhook import DELIVERY_TYPE
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.routes import Routes
from fileq.producer.enqueuer import BeforeEnqueue
from fileq.producer.producer import Producer, check_scan_dir
from fileq.runtime.observers import Observers, followed_by
from fileq.runtime.produce_once import ProducerSummary, Show, describe, live_line, produce_once
from fileq.runtime.roles import FatalError, StopSignals, load_routes, report_loop, start_broker, stop_in_time
from fileq.runtime.service import Service
from fileq.runtime.worker_build import BuiltInJobs, WorkerParts, build_worker
from fileq.worker.breakers import reason_of
from fileq.worker.deferrals import in_states

OK, LEFT_DEAD, INTERRUPTED = 0, 3, 130
LOOK_EVERY_S = 0.1
RATE_OVER_S = 5.0
DEAD_SHOWN = 10


def run_once(loaded: Loaded, app_dir: str, *, is_producing: bool, built_in: BuiltInJobs | None = None) -> int:
    """Exit code 0, or 3 if a job became dead in this run. Jobs for later and in paused queues stay and are reported.
    Raises FileqError, exit code 1, if jobs stay because their root is missing or their circuit breaker is open."""
    config = loaded.config
    if is_producing:
        check_scan_dir(config)
    with closing(Observers(config)) as observers, live_line("starting") as (show, is_shown):
        routes = load_routes(loaded, app_dir, observers.emit)
        before = load_before_enqueue(config, app_dir=app_dir) if is_producing else None
        emit_all = observers.with_hooks(routes.hooks)
        broker = start_broker(loaded, observers.emit)
        try:
            if is_shown:
                observers.logs.demotes = is_counted
            run = _Run(loaded, broker, routes, app_dir, emit_all, show, before, built_in, is_producing=is_producing)
            run.go()
            observers.is_hurried = run.is_hurried
            report = list(run.report())
        finally:
            broker.close()
    for line in report:
        print(line)
    if run.problem:
        raise FileqError(f"{run.problem}; the scan is incomplete")
    if run.is_interrupted:
        return INTERRUPTED
    if run.left.problem:
        raise FileqError(run.left.problem)
    return LEFT_DEAD if run.dead_count else OK


def is_counted(event: Event) -> bool:
    """Events that the progress line counts and the report names; on a terminal they need no log line of their own."""
    return event.level == "info" or isinstance(event, events.JobFailed | events.JobDead)


class _Stopped(Exception):
    """A signal arrived: leaves the wait in progress."""


class _Run:
    def __init__(
        self,
        loaded: Loaded,
        broker: FullBroker,
        routes: Routes,
        app_dir: str,
        emit_all: EmitAll,
        show: Show,
        before_enqueue: BeforeEnqueue | None,
        built_in: BuiltInJobs | None,
        *,
        is_producing: bool,
    ) -> None:
        self._broker = broker
        self._show = show
        self._counts: Counter[type[Event]] = Counter()
        self._ended = 0  # attempts
        self._dead: list[tuple[str, str]] = []  # (id, error) of the first dead jobs
        emit_all = followed_by(self._count, emit_all)
        self._emit = emit = singly(emit_all)
        self._fatal = FatalError()
        self._worker = build_worker(
            loaded,
            broker,
            routes,
            app_dir=app_dir,
            emit_all=emit_all,
            on_failure=self._fatal.report,
            built_in=built_in,
            fires_schedules=False,
        )
        producer = None
        if is_producing:
            producer = Producer(loaded.config, broker, emit=emit, is_once=True, before_enqueue=before_enqueue)
        self._producer = producer
        self._services: list[Service] = [*self._worker.services]
        if producer is not None:
            self._services.append(report_loop(loaded.config, producer, broker, emit))
        self._rate_limit_key = loaded.config.producer.rate_limit_key
        self._timeout_s = loaded.config.worker.shutdown_timeout
        self._census: Census | None = None
        self._looked_s = float("-inf")
        self._pace = _Pace()
        self._is_stopping = threading.Event()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._summary: ProducerSummary | None = None
        self.left = WhatIsLeft([])
        self._started_s = time.monotonic()
        self.is_interrupted = self.is_hurried = False

    @property
    def dead_count(self) -> int:
        return self._counts[events.JobDead]

    @property
    def problem(self) -> str:
        return self._producer.finder.problem if self._producer is not None else ""

    def go(self) -> None:
        services = self._services
        with closing(StopSignals()) as signals:
            thread = threading.Thread(target=self._work, args=(signals.end_wait,), name="once", daemon=True)
            try:
                for service in services:
                    service.start()
                thread.start()
                self._fatal.wake_with(signals.end_wait)
                self.is_interrupted = signals.wait()
                if self.is_interrupted:
                    self._emit(events.RoleStopping(signals.last_name))
                self._is_stopping.set()
                if self._producer is not None:
                    self._producer.wake.set()
                self.is_hurried = stop_in_time(services, self._timeout_s, signals)
            finally:
                for service in services:
                    service.stop(0.0)
                self._is_over.set()
            thread.join()
        if self._producer is not None:
            self._producer.close()
        error = self._fatal.error or self._error
        if error is not None:
            raise error

    def _work(self, ended: Callable[[], None]) -> None:
        try:
            if self._producer is not None:
                self._summary = produce_once(self._producer, lambda _: self._tick())
            self.left = self._drain()
        except _Stopped:
            while not self._is_over.wait(LOOK_EVERY_S):
                self._show(f"stopping: {self._running():,} running may finish; Ctrl-C again requeues them immediately")
            return
        except BaseException as error:
            self._error = error
        ended()

    def _drain(self) -> WhatIsLeft:
        """Waits until no job is running and none that waits can run in this run."""
        while True:
            self._looked_s = float("-inf")  # a count from before the last enqueue could be 0
            self._tick()
            with suppress(BrokerUnavailable):  # the worker reports the outage and continues after it
                if self._census is not None and (left := what_is_left(self._broker, self._worker, self._census)):
                    return left
            self._is_stopping.wait(LOOK_EVERY_S)

    # what the operator sees

    def _count(self, event: Event) -> None:
        self._counts[type(event)] += 1
        if isinstance(event, events.AttemptEnded | events.JobFenced):
            self._ended += 1
        if isinstance(event, events.JobDead) and len(self._dead) < DEAD_SHOWN:
            self._dead.append((event.job_id, event.error or ""))

    def _tick(self) -> None:
        if self._is_stopping.is_set():
            raise _Stopped
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            try:
                self._census = self._broker.census()
            except BrokerUnavailable:
                self._census = None  # the worker reports the outage and continues after it
            self._show(self._line(now_s))

    def _running(self) -> int:
        return max(0, self._counts[events.JobClaimed] - self._ended)

    def _ahead(self) -> int:
        return self._producer.unsent if self._producer is not None else 0

    def _line(self, now_s: float) -> str:
        counts, census, producer = self._counts, self._census, self._producer
        left = self._ahead()
        if census is not None:
            left += sum(census.pending.values()) + census.scheduled + census.running
        rate = self._pace.of(counts[events.JobCompleted], now_s)
        parts = [
            f"done {counts[events.JobCompleted]:,}",
            f"running {census.running if census is not None else self._running():,}",
            f"failed {counts[events.JobFailed] + counts[events.JobDead]:,}",
            f"dead {counts[events.JobDead]:,}",
            f"{rate:,.0f}/s",
            f"left {left:,}",
            *(describe(producer, self._rate_limit_key) if producer is not None else ()),
        ]
        for breaker in self._worker.breakers.open_ones():
            parts.append(printable(f"breaker of {breaker.route} {breaker.state}"))
        if problem := self._worker.service.problem():
            parts.append(printable(problem))
        return "  ".join(parts)

    def report(self) -> Iterator[str]:
        """The lines printed at the end: the scan, the jobs, what stays, and the dead jobs last."""
        counts = self._counts
        if self._summary is not None:
            yield str(self._summary)
        yield (
            f"{'interrupted: ' if self.is_interrupted else ''}completed {counts[events.JobCompleted]},"
            f" retried {counts[events.JobFailed]}, dead {counts[events.JobDead]}"
            f" in {short_duration(time.monotonic() - self._started_s)}"
        )
        yield from self.left.lines
        if self.is_interrupted:
            yield from self._left_behind()
        yield from self._name_dead()

    def _left_behind(self) -> Iterator[str]:
        try:
            census = self._broker.census()
        except BrokerUnavailable:
            return
        if waiting := sum(census.pending.values()) + census.scheduled + self._ahead():
            yield f"left {waiting} for a later run"

    def _name_dead(self) -> Iterator[str]:
        try:
            records = self._broker.records([id for id, _ in self._dead])
        except BrokerUnavailable:
            records = []
        raws = {record.id: record.raw for record in records if record is not None}
        for id, error in self._dead:
            yield f"dead: {printable(_name(id, raws.get(id, b'')))}: {printable(error)}"
        if (more := self.dead_count - len(self._dead)) > 0:
            yield f"and {more} more; see 'fileq dlq list'"


class _Pace:
    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, done: int, now_s: float) -> float:
        self._seen.append((now_s, done))
        while self._seen[0][0] < now_s - RATE_OVER_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return (done - before) / max(LOOK_EVERY_S, now_s - since_s)


def _name(id: str, raw: bytes) -> str:
    """A name for people: the file, or the type and the id."""
    job = decode_or_none(raw)
    if job is None:
        return id
    return job.filepath or f"{job.type or 'job'} {id}"


# What a run leaves: the jobs that nothing in it would let start, by reason


class WhatIsLeft(Struct):
    """`lines` say what stays, for the report. `problem` says why jobs stay that should have run, and what to do."""

    lines: list[str]
    problem: str = ""


def what_is_left(broker: FullBroker, worker: WorkerParts, census: Census) -> WhatIsLeft | None:
    """None while there is work that this run can do. A run does not wait for the cooldown of an open breaker: a probe
    that fails would be followed by another cooldown, up to once for each attempt of each job. Nor does it wait for the
    next attempt of a delivery, which comes up to a day later. Raises BrokerUnavailable."""
    # Before the jobs are read: a breaker in its cooldown starts none of them meanwhile.
    cooling = [breaker for breaker in worker.breakers.open_ones() if breaker.next_probe_ms]
    breakers = {reason_of(breaker.route): _described(breaker) for breaker in cooling}
    holds_all = bool(cooling) and len(cooling) == len(worker.breakers.names)
    everything = "; ".join(breakers.values()) if holds_all else ""
    if _has_work(census, holds_all=holds_all):
        return None
    roots = set(worker.roots.problems.values())
    held: Counter[str] = Counter()  # by breaker
    missing: Counter[str] = Counter()  # by root
    deliveries = read = 0
    if census.scheduled:
        for page in broker.pages("scheduled"):
            read += len(page)
            for record in in_states(broker, page, (State.RETRYING, State.DEFERRED)):
                if record.deferred in roots:
                    missing[record.deferred] += 1
                elif reason := breakers.get(record.deferred, everything):
                    held[reason] += 1
                elif _is_failed_delivery(record) and record.due_ms > census.now_ms:
                    deliveries += 1
                else:
                    return None
        census = broker.census()  # a job may have been promoted before it was read above
        if _has_work(census, holds_all=holds_all) or census.scheduled > read:
            return None  # a job may have been deferred again after they were read: it would count as one for later
    later = census.scheduled - missing.total() - held.total() - deliveries
    if later < 0:
        return None  # a job was promoted after it was read: it would be counted twice
    if holds_all and (pending := sum(n for queue, n in census.pending.items() if queue not in census.paused)):
        held[everything] += pending
    return WhatIsLeft(
        [
            *(f"left {n} in {q}, which is paused" for q, n in census.pending.items() if n and q in census.paused),
            *(f"left {n} deferred: {reason}" for reason, n in chain(missing.items(), held.items())),
            *([f"left {deliveries} retrying: webhook deliveries"] if deliveries else []),
            *([f"left {later} scheduled for later"] if later > 0 else []),
        ],
        _problem(missing, held),
    )


def _is_failed_delivery(record: Record) -> bool:
    job = decode_or_none(record.raw)
    return not record.deferred and job is not None and job.type == DELIVERY_TYPE


def _problem(missing: Counter[str], held: Counter[str]) -> str:
    advice = "mount it" if all(reason.endswith("(not mounted?)") for reason in missing) else "fix it"
    parts = [f"{'; '.join(missing)}; {advice} and run again"] if missing else []
    if held:
        waiting = "1 job stays" if held.total() == 1 else f"{held.total()} jobs stay"
        parts.append(f"{waiting} deferred until the next run: {'; '.join(held)}; fix the cause and run again")
    return "; ".join(parts)


def _described(breaker: OpenBreaker) -> str:
    reason = reason_of(breaker.route)
    return printable(f"{reason} ({breaker.error})" if breaker.error else reason)


def _has_work(census: Census, *, holds_all: bool) -> bool:
    """`holds_all`: no job is claimed now, because every breaker is open."""
    if census.running:
        return True
    return not holds_all and any(n for queue, n in census.pending.items() if queue not in census.paused)
