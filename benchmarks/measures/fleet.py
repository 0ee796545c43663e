"""What a large fleet of idle workers costs the server, how many of them one job wakes, and what their deaths cost.

Most of the workers are programs/fleet_program.py: real clients of the broker, many in one process. The pickup of jobs
is also measured with real processes of the installed program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measures.measure import Bench, Column, Figures, Measure, is_compared
from benchmarks.runs import Run, RunFailed, run_of
from benchmarks.summary import percentile
from benchmarks.systems.system import PROGRAMS, System
from fileq.core.job import encode, typed_job
from tests.support.waiting import wait_until

START_S = 120.0
SLOTS = 16
PUSH_PAUSE_S = 0.02
QUEUE = "jobqueue:low_priority"


@dataclass
class Fleet:
    """Processes with `each` workers."""

    processes: list[subprocess.Popen[str]]
    each: int

    def wakes(self) -> int:
        total = 0
        for process in self.processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            total += int(process.stdout.readline())
        return total

    def kill(self, workers: int) -> None:
        for _ in range(workers // self.each):
            process = self.processes.pop()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def fleet_of(run: Run, workers: int, each: int) -> Iterator[Fleet]:
    command = run.system.client(run.place)
    fleet = Fleet([], each)
    with (run.place.folder / "fleet").open("w") as errors:
        try:
            for _ in range(workers // each):
                fleet.processes.append(
                    subprocess.Popen(
                        [command.arguments[0], str(PROGRAMS / "fleet_program.py"), str(each)],
                        env={**os.environ, **command.environment},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                    )
                )
            for process in fleet.processes:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "started":
                    raise RunFailed(f"a process of the fleet has ended:\n{Path(errors.name).read_text()[-3000:]}")
            wait_until(lambda: len(worker_names(run)) >= workers, START_S, "all workers are connected")
            yield fleet
        finally:
            for process in fleet.processes:
                process.kill()
                process.wait()


def worker_names(run: Run) -> list[str]:
    with contextlib.closing(run.server.client()) as client:
        return [one["name"] for one in client.client_list() if one["name"].startswith("fileq:worker:")]


def _commands(run: Run) -> int:
    with contextlib.closing(run.server.client()) as client:
        return int(client.info("stats")["total_commands_processed"])


def _idle(run: Run, seconds: float) -> tuple[float, float]:
    """CPU of the server in percent of a core, and commands a second, those in scripts included."""
    commands, server_us, started_s = _commands(run), run.server_us(), time.perf_counter()
    time.sleep(seconds)
    took_s = time.perf_counter() - started_s
    return (run.server_us() - server_us) / took_s / 1e4, (_commands(run) - commands) / took_s


def _push(run: Run, number: int, kind: str) -> None:
    """As another program does."""
    job = typed_job(kind, None, priority="low", now=datetime.now(UTC), id=f"{kind}-{number}")
    with contextlib.closing(run.server.client()) as client:
        client.lpush(QUEUE, encode(job))


def _wakes(run: Run, fleet: Fleet, pushes: int) -> float:
    before = fleet.wakes()
    for number in range(pushes):
        _push(run, number, "noop")
        time.sleep(PUSH_PAUSE_S)
    wait_until(lambda: run.ran() >= pushes, START_S, "all jobs have run")
    return (fleet.wakes() - before) / pushes


def _back_s(run: Run, fleet: Fleet, workers: int, slots: int) -> float:
    """All slots hold jobs; then some workers are killed. Seconds until their jobs are back in the queue."""
    for number in range(slots):
        _push(run, number, "hold")
    before = {process.pid for process in fleet.processes}
    wait_until(lambda: _held(run, before) == slots, START_S, "all jobs are claimed")
    fleet.kill(workers)
    started_s = time.perf_counter()
    killed = before - {process.pid for process in fleet.processes}
    wait_until(lambda: _held(run, killed) == 0, START_S, "the jobs of the killed workers are back")
    return time.perf_counter() - started_s


def _held(run: Run, pids: set[int]) -> int:
    """Jobs in the slots of these processes."""
    with contextlib.closing(run.server.client()) as client:
        lists = [key.decode() for key in client.scan_iter("jobqueue:worker:*:processing", count=10_000)]
    return sum(int(key.split(":")[2].rsplit("-", 3)[-3]) in pids for key in lists)


def _pickup_ms(run: Run, pickups: int) -> float:
    run.client("pickup", str(pickups))
    lines = run.place.log.read_bytes().lstrip(b".").split()
    return percentile([int(line) / 1e6 for line in lines], 99)


def _run(system: System, bench: Bench) -> Figures:
    sizes, figures = bench.sizes, dict[str, float]()
    each = sizes.fleet // 10
    with run_of(system, bench.server) as run, fleet_of(run, sizes.fleet // 4, each // 4) as fleet:
        time.sleep(sizes.idle_s)
        _, few = _idle(run, sizes.fleet_idle_s)
    with run_of(system, bench.server) as run, fleet_of(run, sizes.fleet, each) as fleet:
        time.sleep(sizes.idle_s)
        figures["fleet_cpu"], many = _idle(run, sizes.fleet_idle_s)
        figures["fleet_commands"] = many / few
        figures["fleet_connections"] = max(Counter(worker_names(run)).values()) / each
        figures["fleet_wakes"] = _wakes(run, fleet, sizes.pickups)
        figures["fleet_back_s"] = _back_s(run, fleet, 3 * each, SLOTS * sizes.fleet)
    pickups_ms = []
    for processes in (1, sizes.fleet_processes):
        with run_of(system, bench.server) as run:
            run.start_workers(processes)
            wait_until(lambda run=run, n=processes: len(set(worker_names(run))) == n, START_S, "all workers run")
            time.sleep(sizes.idle_s)
            pickups_ms.append(_pickup_ms(run, sizes.pickups))
    with run_of(system, bench.server) as run, fleet_of(run, 1, 1):
        one_ms = _pickup_ms(run, sizes.pickups)
    with run_of(system, bench.server) as run, fleet_of(run, sizes.fleet, each):
        time.sleep(sizes.idle_s)
        figures["fleet_pickup"] = _pickup_ms(run, sizes.pickups) / one_ms
    figures["fleet_pickup_processes"] = pickups_ms[1] / pickups_ms[0]
    return figures


FLEET = Measure(
    "fleet",
    "A fleet of 1,000 workers with 16 slots, on Redis",
    (
        Column("fleet_cpu", "idle: server, % of a core", 2, ""),
        Column("fleet_commands", "commands/s, 1,000 ÷ 250 workers", 2, ""),
        Column("fleet_connections", "connections a worker", 2, ""),
        Column("fleet_wakes", "wakes a push", 2, ""),
        Column("fleet_back_s", "300 killed: all their jobs back, s", 1, ""),
        Column("fleet_pickup", "pickup p99, 1,000 workers ÷ 1", 2, ""),
        Column("fleet_pickup_processes", "pickup p99, 100 processes ÷ 1", 2, ""),
    ),
    lambda system: is_compared(system) and system.name == "fileq thread 16",
    _run,
)
