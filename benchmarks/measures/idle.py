"""What a worker that waits for jobs costs: CPU of its processes and the server, and memory.

The worker has run jobs before, so that all its children exist."""

from __future__ import annotations

import time

from benchmarks.measures.measure import Bench, Column, Figures, Measure, is_compared
from benchmarks.proc import tree_pss_mb
from benchmarks.runs import run_of
from benchmarks.systems.system import System

WARM_UP_JOBS = 200
CALM_S = 1.0


def _run(system: System, bench: Bench) -> Figures:
    with run_of(system, bench.server) as run:
        run.fill(WARM_UP_JOBS)
        run.start_workers()
        run.wait_ran(WARM_UP_JOBS)
        time.sleep(CALM_S)
        times, server_us, started_s = run.times(), run.server_us(), time.perf_counter()
        time.sleep(bench.sizes.idle_s)
        used, used_server_us = run.times() - times, run.server_us() - server_us
        seconds = time.perf_counter() - started_s
        total_us = used.root_us + used.below_us + used_server_us
        return {"idle_cpu": total_us / seconds / 1e4, "idle_pss": sum(map(tree_pss_mb, run.pids))}


IDLE = Measure(
    "idle",
    "Idle",
    (Column("idle_cpu", "idle CPU %", 2, "less"), Column("idle_pss", "idle PSS MB", 0, "less")),
    is_compared,
    _run,
)
