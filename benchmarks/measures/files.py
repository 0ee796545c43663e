"""Files end to end: from the start of the programs on a directory of files to the end of the last handler, which reads
its file. fileq finds the files itself; before a peer a program walks through the directory and enqueues each path."""

from __future__ import annotations

import time

from benchmarks.measures.measure import Bench, Column, Figures, Measure, is_compared_as
from benchmarks.runs import run_of
from benchmarks.systems.system import System


def _run(system: System, bench: Bench) -> Figures:
    files = bench.sizes.files
    directory = bench.tree(files)
    with run_of(system, bench.server, directory) as run:
        started_s = time.perf_counter()
        if system.files is not None:
            run.start(system.files(run.place))
            run.wait_ran(files)
        else:
            run.start_workers()
            run.start(system.client(run.place), "walk", str(directory))
            run.wait_ran(files + 1)  # the client sends a no-op first
        seconds = time.perf_counter() - started_s
    return {"files_s": seconds, "files_rate": files / seconds}


FILES = Measure(
    "files",
    "Files end to end",
    (Column("files_s", "seconds", 1, ""), Column("files_rate", "files/s")),
    is_compared_as("celery"),
    _run,
)
