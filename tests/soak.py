"""`make soak`: random faults for SOAK_MINUTES, on Redis, through a faulty network, and on SQLite, all at the same time.
Besides, 200 workers whose jobs make jobs are killed as these jobs end, and ten workers fire a schedule every second for
a minute while they are killed, and 20 batches of 500 jobs run on workers that are killed.

SOAK=network runs only those whose name contains the word. Prints the figures of each as a line of docs/guarantees.md.
Ends with 1 if something was lost or ended twice.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.batch_storm import StormFigures, storm
from tests.support.fault_proxy import FaultProxy
from tests.support.follow_up_kills import killed_at_random
from tests.support.parallel_scenarios import setup_with_own_server
from tests.support.random_faults import Figures, RandomFaults, run_with_faults
from tests.support.schedule_kills import ScheduleFigures, fire_each_second
from tests.support.servers import available_servers
from tests.support.worker_setup import open_worker_setup


def on_redis(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with (
        open_worker_setup(directory, {"sqlite.path": str(directory / "unused.db")}, kind=kind) as setup,
        setup_with_own_server(setup) as (server, own),
    ):
        return run_with_faults(RandomFaults(own, seed, server=server), seconds)


def through_a_faulty_network(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with (
        open_worker_setup(directory, {"sqlite.path": str(directory / "unused.db")}, kind=kind) as setup,
        setup_with_own_server(setup) as (server, own),
        FaultProxy(server.port) as proxy,
    ):
        return run_with_faults(RandomFaults(own, seed, proxy=proxy), seconds)


def on_sqlite(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}, kind=kind) as setup:
        return run_with_faults(RandomFaults(setup, seed), seconds)


def follow_ups(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    """Workers killed between the end of a handler and the settlement: 100 on Redis and 100 on SQLite."""
    with (
        open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}, kind=kind) as setup,
        setup_with_own_server(setup) as (_, own),
    ):
        ended = [killed_at_random(one, KILLS, seed) for one in (setup, own)]
    kills, completed = (sum(one[name] for one in ended) for name in ("kills", "completed"))
    jobs = KILLS * len(ended)
    return Figures(jobs, jobs, jobs - completed, 0, 2 * jobs - completed, {"worker_killed": kills})


def schedules_on_redis(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with (
        open_worker_setup(directory, {"sqlite.path": str(directory / "unused.db")}, kind=kind) as setup,
        setup_with_own_server(setup) as (server, own),
    ):
        return _schedule_figures(fire_each_second(own, WORKERS, 60, seed, server))


def schedules_on_sqlite(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}, kind=kind) as setup:
        return _schedule_figures(fire_each_second(setup, WORKERS, 60, seed))


def _schedule_figures(found: ScheduleFigures) -> Figures:
    """The seconds stand for files; those without a job are counted as missed."""
    faults = {"worker_killed": found.kills, "server_killed": found.restarts, "second_missed": found.missed}
    return Figures(found.slots, found.fired, 0, 0, found.fired, {name: n for name, n in faults.items() if n})


def batches_on_redis(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with (
        open_worker_setup(directory, {"sqlite.path": str(directory / "unused.db")}, kind=kind) as setup,
        setup_with_own_server(setup) as (server, own),
    ):
        return _batch_figures(storm(own, batches=20, jobs=500, workers=4, seed=seed, server=server))


def batches_on_sqlite(directory: Path, kind: str, seed: int, seconds: float) -> Figures:
    with open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}, kind=kind) as setup:
        return _batch_figures(storm(setup, batches=20, jobs=500, workers=4, seed=seed))


def _batch_figures(found: StormFigures) -> Figures:
    """Jobs stand for files, callbacks for what was recovered."""
    faults = {"worker_killed": found.kills, "server_killed": found.restarts, "callback": found.callbacks}
    completed = found.jobs - found.dead
    return Figures(found.jobs, completed, 0, found.dead, found.jobs, {name: n for name, n in faults.items() if n})


KILLS = 100
WORKERS = 10
SCENARIOS: dict[str, Callable[[Path, str, int, float], Figures]] = {
    "Redis, processes and server killed": on_redis,
    "Redis, faulty network": through_a_faulty_network,
    "SQLite, processes killed": on_sqlite,
    "Follow-ups, workers killed": follow_ups,
    "Schedules on Redis, workers and server killed": schedules_on_redis,
    "Schedules on SQLite, workers killed": schedules_on_sqlite,
    "Batches on Redis, workers and server killed": batches_on_redis,
    "Batches on SQLite, workers killed": batches_on_sqlite,
}


def main() -> int:
    seconds = float(os.environ.get("SOAK_MINUTES", "10")) * 60
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(1_000_000))
    kind = next(kind for kind in ("redis", "valkey") if available_servers()[kind] is not None)
    print(f"{seconds / 60:g} minutes with {kind}, CHAOS_SEED={seed}", flush=True)
    failed, out = False, sys.stdout
    # The programs of a run print their logs when they end, for the report of a failed test.
    with (
        contextlib.redirect_stdout(io.StringIO()),
        ThreadPoolExecutor(len(SCENARIOS)) as pool,
        tempfile.TemporaryDirectory(prefix="fileq-soak-") as scratch,
    ):
        futures = {}
        for number, (name, scenario) in enumerate(SCENARIOS.items()):
            if os.environ.get("SOAK", "") not in name:
                continue
            directory = Path(scratch, str(number))
            directory.mkdir()
            futures[name] = pool.submit(scenario, directory, kind, seed, seconds)
        for name, future in futures.items():
            try:
                print(line_of(name, future.result()), file=out, flush=True)
            except Exception as error:
                failed = True
                print(f"{name}: {error!r}", *getattr(error, "__notes__", ()), sep="\n", file=out, flush=True)
    return 1 if failed else 0


def line_of(name: str, figures: Figures) -> str:
    faults = ", ".join(f"{count} {fault.replace('_', ' ')}" for fault, count in sorted(figures.faults.items()))
    numbers = (figures.files, figures.completed, figures.recovered, figures.failed, figures.runs)
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {faults} |"


if __name__ == "__main__":
    sys.exit(main())
