"""How fast waiting jobs are run, and what a job costs: worker processes, children, server.

The jobs wait before the workers start. The figures are those from the moment when a fifth has run: starting is not
part of them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from benchmarks.measures.measure import Bench, Column, Figures, Measure, is_compared, is_compared_as
from benchmarks.runs import Run, jobs_of, run_of, slow_network
from benchmarks.systems.system import System

ADDED_LATENCY_MS = 2.0


@dataclass(frozen=True)
class Drained:
    per_s: float
    worker_us: float
    children_us: float
    server_us: float


def drain(run: Run, jobs: int) -> Drained:
    """The figures of the jobs from the fifth on, until `jobs` have run. The workers have been started."""
    run.wait_ran(max(1, jobs // 5))
    first, started_s = run.ran(), time.perf_counter()
    times, server_us = run.times(), run.server_us()
    run.wait_ran(jobs)
    seconds, used, used_server_us = time.perf_counter() - started_s, run.times() - times, run.server_us() - server_us
    done = max(1, jobs - first)
    return Drained(done / seconds, used.root_us / done, used.below_us / done, used_server_us / done)


def _drained(
    system: System, bench: Bench, jobs: int, *, workers: int = 1, waiting: int = 0, kind: str = "noop", cores: int = 0
) -> Drained:
    """`waiting`: so many jobs are still there in the end."""
    with run_of(system, bench.server) as run:
        run.fill(jobs + waiting, kind)
        run.start_workers(workers, cores=cores)
        return drain(run, jobs)


def _one(system: System, bench: Bench) -> Figures:
    drained = _drained(system, bench, jobs_of(system, bench.sizes.drained))
    total_us = drained.worker_us + drained.children_us + drained.server_us
    return {
        "drain_1": drained.per_s,
        "cpu_worker": drained.worker_us,
        "cpu_children": drained.children_us,
        "cpu_server": drained.server_us,
        "cpu_total": total_us,
    }


def _two(system: System, bench: Bench) -> Figures:
    return {"drain_2": _drained(system, bench, jobs_of(system, bench.sizes.drained), workers=2).per_s}


def _depth(system: System, bench: Bench) -> Figures:
    jobs = bench.sizes.drained_before_them
    few = _drained(system, bench, jobs, waiting=bench.sizes.few_waiting).per_s
    many = _drained(system, bench, jobs, waiting=bench.sizes.many_waiting).per_s
    return {"drain_few": few, "drain_many": many, "depth_kept": many / few}


def _latency(system: System, bench: Bench) -> Figures:
    jobs = jobs_of(system, bench.sizes.drained // 2)
    near = _drained(system, bench, jobs).per_s
    with run_of(system, bench.server) as run, slow_network(bench.server.port, ADDED_LATENCY_MS) as port:
        run.fill(jobs)
        run.start_workers(place=replace(run.place, redis_port=port))
        far = drain(run, jobs).per_s
    return {"drain_near": near, "drain_far": far, "latency_kept": far / near}


def _cores(system: System, bench: Bench) -> Figures:
    one = _drained(system, bench, bench.sizes.spins, kind="spin", cores=1).per_s
    if len(os.sched_getaffinity(0)) < 2:
        return {"spin_1": one}
    two = _drained(system, bench, bench.sizes.spins, kind="spin", cores=2).per_s
    return {"spin_1": one, "spin_2": two, "spin_gain": two / one}


DRAIN = Measure(
    "drain",
    "Drain",
    (
        Column("drain_1", "drain/s, 1 worker"),
        Column("cpu_worker", "CPU µs a job: worker", better=""),
        Column("cpu_children", "children", better=""),
        Column("cpu_server", "server", better=""),
        Column("cpu_total", "total", better="less"),
    ),
    lambda _: True,
    _one,
)
TWO_WORKERS = Measure(
    "two", "Two workers", (Column("drain_2", "drain/s, 2 workers"),), lambda system: system.is_default, _two
)
DEPTH = Measure(
    "depth",
    "Drain with few and many jobs waiting behind",
    (
        Column("drain_few", "drain/s, 1,000 waiting"),
        Column("drain_many", "drain/s, 1,000,000 waiting"),
        Column("depth_kept", "many ÷ few", 2, better=""),
    ),
    # A million jobs take most of a minute to enqueue; threads claim by the same calls.
    lambda system: is_compared(system) and system.is_fileq and "process" in system.name,
    _depth,
)
LATENCY = Measure(
    "latency",
    "Drain with 2 ms added latency",
    (
        Column("drain_near", "drain/s"),
        Column("drain_far", "drain/s, 2 ms added"),
        Column("latency_kept", "far ÷ near", 2, better=""),
    ),
    is_compared_as("bullmq", "celery"),
    _latency,
)
CORES = Measure(
    "cores",
    "CPU-bound handlers",
    (
        Column("spin_1", "jobs/s, 1 core"),
        Column("spin_2", "jobs/s, 2 cores"),
        Column("spin_gain", "2 cores ÷ 1 core", 2, better=""),
    ),
    is_compared_as("celery"),
    _cores,
)
