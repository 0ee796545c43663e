"""How soon an idle worker starts a job: from the call that enqueues it to the first line of its handler."""

from __future__ import annotations

from benchmarks.measures.measure import Bench, Column, Figures, Measure
from benchmarks.runs import run_of
from benchmarks.summary import percentile
from benchmarks.systems.system import System


def _run(system: System, bench: Bench) -> Figures:
    with run_of(system, bench.server) as run:
        run.start_workers()
        run.client("pickup", str(bench.sizes.pickups))
        lines = run.place.log.read_bytes().lstrip(b".").split()
    times_ms = [int(line) / 1e6 for line in lines]
    return {f"pickup_p{share}": percentile(times_ms, share) for share in (50, 95, 99)}


PICKUP = Measure(
    "pickup",
    "Pickup",
    tuple(Column(f"pickup_p{share}", f"pickup ms, p{share}", 2, "less") for share in (50, 95, 99)),
    lambda system: system.is_default,
    _run,
)
