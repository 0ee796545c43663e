"""`fileq all --once`: scan once, process until nothing is left that could be, exit. For cron and CI.

`fileq worker --once` is the same without the scan.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fileq.brokers.base import FullBroker
from fileq.config import Loaded
from fileq.errors import BrokerUnavailable
from fileq.job import State
from fileq.observe.logs import set_up_logs
from fileq.producer.once import produce_once
from fileq.producer.producer import Producer, check_scan_dir
from fileq.roles import both, load_routes, start_broker, without_info
from fileq.service import Service
from fileq.worker.build import build_worker

OK, LEFT_DEAD = 0, 3
LOOK_EVERY_S = 0.1
Show = Callable[[str], None]


def run_all_once(loaded: Loaded, app_dir: str, *, is_producing: bool = True) -> int:
    """0, or 3 if a job died in this run. Jobs for later and paused queues are left, and reported."""
    config = loaded.config
    if is_producing:
        check_scan_dir(config)
    counts: Counter[str] = Counter()
    log = set_up_logs(config.observability.log_level, config.observability.log_format)
    with _line() as (show, is_shown):
        emit = both(without_info(log) if is_shown else log, _counting(counts))
        routes = load_routes(loaded, app_dir, emit)
        broker = start_broker(loaded, emit)
        started_s = time.monotonic()
        try:
            producer = Producer(config, broker, broker, emit=emit, is_once=True) if is_producing else None
            worker = build_worker(loaded, broker, routes, app_dir=app_dir, emit=emit)
            with _running(worker.services, config.worker.shutdown_timeout):
                if producer is not None:
                    summary = produce_once(producer, lambda _: show(_progress(counts, started_s)))
                left = _drain(broker, lambda: show(_progress(counts, started_s)))
            if producer is not None:
                producer.close()
        finally:
            broker.close()
    if producer is not None:
        print(summary)
    print(_outcome(counts, time.monotonic() - started_s))
    for line in left:
        print(line)
    return LEFT_DEAD if counts["job.dead"] else OK


def _counting(counts: Counter[str]) -> Any:
    def emit(event: str, *, level: str = "info", **fields: Any) -> None:
        if event.startswith("job."):
            counts[event] += 1

    return emit


@contextmanager
def _running(services: list[Service], timeout_s: float) -> Iterator[None]:
    """Started, and stopped whatever happens; SIGTERM ends it like Ctrl-C."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    for service in services:
        service.start()
    try:
        yield
    finally:
        for service in services:
            service.quiet()
        for service in services:
            service.stop(timeout_s)


def _drain(broker: FullBroker, tick: Callable[[], None]) -> list[str]:
    """Wait until nothing is pending, running or retrying; what is left then, in words."""
    while True:
        tick()
        try:
            left = _what_is_left(broker)
        except BrokerUnavailable:
            left = None  # the worker tells of it, and goes on when it is over
        if left is not None:
            return left
        time.sleep(LOOK_EVERY_S)


def _what_is_left(broker: FullBroker) -> list[str] | None:
    """None while there is work; else a line for each thing that waits for somebody or for later."""
    census = broker.census()
    if census.running or any(n for queue, n in census.pending.items() if queue not in census.paused):
        return None
    if census.scheduled and _is_retrying(broker):
        return None
    lines = [f"left {n} in {queue}, which is paused" for queue, n in census.pending.items() if n]
    return [*lines, *([f"left {census.scheduled} scheduled for later"] if census.scheduled else [])]


def _is_retrying(broker: FullBroker) -> bool:
    from fileq.job import decode

    for page in broker.pages("scheduled"):
        records = broker.records([decode(raw).id for raw in page])
        if any(record is not None and record.state is State.RETRYING for record in records):
            return True
    return False


def _progress(counts: Counter[str], started_s: float) -> str:
    seconds = max(0.001, time.monotonic() - started_s)
    done = counts["job.completed"]
    running = counts["job.claimed"] - done - counts["job.failed"] - counts["job.dead"] - counts["job.cancelled"]
    left = max(0, counts["job.produced"] - done - counts["job.dead"])
    return (
        f"done {done:,}  running {max(0, running):,}  failed {counts['job.failed']:,}  dead {counts['job.dead']:,}"
        f"  {done / seconds:,.0f}/s  left {left:,}"
    )


def _outcome(counts: Counter[str], seconds: float) -> str:
    return (
        f"completed {counts['job.completed']}, retried {counts['job.failed']}, dead {counts['job.dead']}"
        f" in {seconds:.1f} s"
    )


@contextmanager
def _line() -> Iterator[tuple[Show, bool]]:
    """A line that moves, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda text: None, False
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        yield lambda text: bar.update(task, description=text), True
