"""Measures how many tasks per second the executors run, without any broker: python -m benchmarks.executors

The handler makes one os.write. `handler` does what a worker does. `bare` leaves out what running a handler needs
(decoding the job, its context, its result), which leaves the executor's own cost. With `--sleep` or `--work` each bare
task also sleeps or computes for that long: such tasks must use all slots or cores. CPU time is given for each task,
for this process, which takes the place of the worker, and for the processes below it.
"""

from __future__ import annotations

import argparse
import os
import select
import time
from collections.abc import Callable
from typing import Any

from benchmarks.proc import tree_times
from fileq.config import config_from
from fileq.core.job import ClaimKey, Job, encode
from fileq.core.outcome import Done, Ran, Task
from fileq.handlers.context import CancelFlag
from fileq.handlers.routes import Routes
from fileq.runtime.handlers_program import handlers_program
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Executor, Run
from fileq.worker.executors.thread import ThreadExecutor

RAW = encode(Job("0b1c2d3e", "", 0, "low", 0, "2026-01-02T03:04:05.678Z", "", "", type="noop"))
SINK = os.open(os.devnull, os.O_WRONLY | os.O_APPEND)


def noop(_job: Any, _context: Any) -> None:
    os.write(SINK, b"x")


def load_bare(argument: bytes) -> Run:
    """The argument: seconds to sleep, and seconds to compute."""
    sleep_s, work_s = map(float, argument.split())
    if not sleep_s and not work_s:
        return run_bare

    def run(task: Task, cancelled: CancelFlag) -> Ran:
        if sleep_s:
            time.sleep(sleep_s)
        end_s = time.perf_counter() + work_s
        while work_s and time.perf_counter() < end_s:
            pass
        return run_bare(task, cancelled)

    return run


def run_bare(_task: Task, _cancelled: CancelFlag) -> Ran:
    os.write(SINK, b"x")
    return Done()


def with_handlers(count: int, isolation: str) -> Executor:
    config = config_from(
        {
            "worker": {"count": count, "isolation": isolation},
            "handlers": [{"type": "noop", "use": "benchmarks.executors:noop"}],
        }
    )
    routes = Routes.load(config, app_dir=".")
    return ExecutorsByIsolation(config.worker, routes, handlers_program(config, app_dir="."))


def rate(executor: Executor, count: int, total: int) -> float:
    """Tasks per second while one thread keeps `count` tasks running."""
    poll = select.poll()
    poll.register(executor.fileno(), select.POLLIN)
    started = ended = 0
    began_s = time.perf_counter()
    while ended < total:
        free = min(total - started, count - (started - ended))
        executor.submit([Task(ClaimKey("slot", started + i), RAW, 0, b"", (), 1, 300.0) for i in range(free)])
        started += free
        if executor.next_deadline_s() != 0.0:
            poll.poll(1000)
        ended += len(executor.collect())
    return total / (time.perf_counter() - began_s)


def measure(executor: Executor, count: int, total: int) -> str:
    before = tree_times([os.getpid()])
    found = rate(executor, count, total)
    used = tree_times([os.getpid()]) - before
    return f"{found:9,.0f} tasks/s   CPU {used.root_us / total:5.1f} + {used.below_us / total:5.1f} µs a task"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=40_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--sleep", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--work", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    count = options.count
    argument = f"{options.sleep} {options.work}".encode()
    kinds: dict[str, Callable[[], Executor]] = {
        "process, bare": lambda: ProcessExecutor(count, Program("benchmarks.executors:load_bare", argument)),
        "process, handler": lambda: with_handlers(count, "process"),
        "thread, bare": lambda: ThreadExecutor(count, load_bare(argument)),
        "thread, handler": lambda: with_handlers(count, "thread"),
    }
    for name, make in kinds.items():
        if options.only not in name:
            continue
        executor = make()
        try:
            rate(executor, count, options.tasks // 10)
            print(f"{name:18} {measure(executor, count, options.tasks)}")
        finally:
            executor.close()


if __name__ == "__main__":
    main()
