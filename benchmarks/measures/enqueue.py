"""How many jobs a second one client enqueues: one call for each job, and in bulk."""

from __future__ import annotations

from benchmarks.measures.measure import Bench, Column, Figures, Measure
from benchmarks.runs import jobs_of, run_of
from benchmarks.systems.system import System


def _run(system: System, bench: Bench) -> Figures:
    figures = {}
    jobs = jobs_of(system, bench.sizes.enqueued, at_least=1000)
    with run_of(system, bench.server) as run:
        figures["enqueue_one"] = jobs / run.client("enqueue", "one", "noop", str(jobs))
    if system.has_bulk:
        jobs = jobs_of(system, bench.sizes.enqueued_in_bulk, at_least=2000)
        with run_of(system, bench.server) as run:
            figures["enqueue_bulk"] = jobs / run.client("enqueue", "bulk", "noop", str(jobs))
    return figures


ENQUEUE = Measure(
    "enqueue",
    "Enqueue",
    (Column("enqueue_one", "enqueue/s, one by one"), Column("enqueue_bulk", "enqueue/s, bulk")),
    lambda system: system.is_default,
    _run,
)
