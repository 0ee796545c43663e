"""A scan in which every file is known, beside `find`, which lists the same files with their size and time.

`fileq producer --once` is the installed program; its time on an empty directory, which is its start, is subtracted."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.measures.measure import Bench, Column, Figures, Measure, is_compared
from benchmarks.runs import Run, RunFailed, run_of
from benchmarks.systems.system import System


def _run(system: System, bench: Bench) -> Figures:
    tree = bench.tree(bench.sizes.known_files)
    with run_of(system, bench.server, tree) as run:
        _scan(system, run)
        find_s = _find(tree)
        known_s = _scan(system, run)
    empty = bench.tree(0)
    with run_of(system, bench.server, empty) as run:
        start_s = _scan(system, run)
    scan_s = known_s - start_s
    return {"scan_s": scan_s, "find_s": find_s, "start_s": start_s, "rescan_by_find": scan_s / find_s}


def _scan(system: System, run: Run) -> float:
    assert system.scan is not None
    started_s = time.perf_counter()
    if run.wait_ended(run.start(system.scan(run.place))) != 0:
        raise RunFailed(f"the scan failed:\n{run.output()}")
    return time.perf_counter() - started_s


def _find(tree: Path) -> float:
    started_s = time.perf_counter()
    subprocess.run(["find", str(tree), "-type", "f", "-printf", "%p %s %T@\\n"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started_s


RESCAN = Measure(
    "rescan",
    "Rescan of known files",
    (
        Column("scan_s", "scan, seconds", 2, "less"),
        Column("find_s", "find, seconds", 2, ""),
        Column("start_s", "start, seconds", 2, ""),
        Column("rescan_by_find", "scan ÷ find", 2, ""),
    ),
    lambda system: system.scan is not None and is_compared(system) and "process" in system.name,
    _run,
)
