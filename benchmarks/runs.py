"""One run of one system: an empty server, a new directory, its programs started and in the end killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.latency_proxy import wait_listening
from benchmarks.proc import TreeTimes, tree_pids, tree_times
from benchmarks.systems.system import Command, Place, System
from tests.support.servers import Server
from tests.support.servers.server import free_port

STALLED_S = 60.0
CLIENT_TIMEOUT_S = 1800.0
# Variables that would configure fileq or a peer.
FOREIGN = ("FILEQ_", "REDIS_", "WORKER_", "PRODUCER_", "OBSERVABILITY_", "SQLITE_", "CELERY_", "RQ_", "BENCH_")


class RunFailed(Exception):
    """A system did not do its jobs; the message holds the end of its output."""


@dataclass
class Run:
    system: System
    place: Place
    server: Server
    _programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # clients

    def client(self, *words: str) -> float:
        """Runs the client of the system; returns the seconds that it reports."""
        command = self.system.client(self.place)
        ended = subprocess.run(
            [*command.arguments, *words],
            env=_environment(command),
            cwd=self.place.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        if ended.returncode != 0:
            raise RunFailed(f"the client ended with {ended.returncode}:\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}")
        return float(json.loads(ended.stdout.splitlines()[-1])["seconds"])

    def fill(self, jobs: int, kind: str = "noop") -> None:
        """Enqueues exactly `jobs` jobs, as fast as the system can. The client sends a no-op before the others."""
        self.client("enqueue", "bulk" if self.system.has_bulk else "one", kind, str(jobs - 1))

    # workers

    def start(self, command: Command, *words: str, cores: int = 0) -> int:
        """Starts a program and returns its pid; `cores`: it may use only so many."""
        allowed = sorted(os.sched_getaffinity(0))[: cores or None]
        with (self.place.folder / "output").open("ab") as output:
            program = subprocess.Popen(
                [*command.arguments, *words],
                env=_environment(command),
                cwd=self.place.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=(lambda: os.sched_setaffinity(0, allowed)) if cores else None,
            )
        self._programs.append(program)
        return program.pid

    def start_workers(self, count: int = 1, *, place: Place | None = None, cores: int = 0) -> None:
        for _ in range(count):
            self.start(self.system.worker(place or self.place), cores=cores)

    def wait_ran(self, size: int) -> None:
        """Waits until the jobs have written `size` bytes; fails if they write nothing for a minute."""
        last, changed_s = -1, time.monotonic()
        while (now := self.ran()) < size:
            if now != last:
                last, changed_s = now, time.monotonic()
            elif time.monotonic() - changed_s > STALLED_S or self._has_ended():
                raise RunFailed(f"{now} of {size} bytes were written by the jobs:\n{self.output()}")
            time.sleep(0.002)

    def wait_ended(self, pid: int) -> int:
        """Waits for the end of a program that `start` started; returns its exit code."""
        return next(program for program in self._programs if program.pid == pid).wait(CLIENT_TIMEOUT_S)

    def ran(self) -> int:
        try:
            return self.place.log.stat().st_size
        except FileNotFoundError:
            return 0

    def output(self) -> str:
        file = self.place.folder / "output"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    @property
    def pids(self) -> list[int]:
        return [program.pid for program in self._programs]

    def times(self) -> TreeTimes:
        return tree_times(self.pids)

    def server_us(self) -> float:
        """CPU time of the server; 0 for a system that does not use it."""
        if self.system.store != "redis":
            return 0.0
        with contextlib.closing(self.server.client()) as client:
            cpu: Any = client.info("cpu")
        return 1e6 * (cpu["used_cpu_sys"] + cpu["used_cpu_user"])

    def kill(self) -> None:
        """Kills everything that this run started."""
        for program in self._programs:
            for pid in tree_pids(program.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        self._programs.clear()

    def _has_ended(self) -> bool:
        return all(program.poll() is not None for program in self._programs)


@contextlib.contextmanager
def run_of(system: System, server: Server, directory: Path | None = None) -> Iterator[Run]:
    """A run on an empty server; in the end its programs are killed and its files deleted."""
    with tempfile.TemporaryDirectory(prefix="fileq-bench-", ignore_cleanup_errors=True) as folder:
        with contextlib.closing(server.client(socket_timeout=120)) as client:
            client.execute_command("FLUSHALL", "SYNC")
        run = Run(system, Place(Path(folder), server.port, directory), server)
        try:
            yield run
        finally:
            run.kill()


@contextlib.contextmanager
def slow_network(target_port: int, delay_ms: float) -> Iterator[int]:
    """The port of a proxy that delays every reply of `target_port`."""
    port = free_port()
    words = [str(port), str(target_port), str(delay_ms)]
    proxy = subprocess.Popen([sys.executable, "-m", "benchmarks.latency_proxy", *words], cwd=Path(__file__).parents[1])
    try:
        wait_listening(port)
        yield port
    finally:
        proxy.kill()
        proxy.wait()


def _environment(command: Command) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return clean | dict(command.environment)


def jobs_of(system: System, jobs: int, at_least: int = 200) -> int:
    """How many of a measure's jobs this system gets."""
    return max(min(jobs, at_least), int(jobs * system.share))
