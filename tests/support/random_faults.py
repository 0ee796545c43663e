"""Random faults: processes, servers and connections fail at random, while files appear and change.

Used by tests/chaos for seconds and by `make soak` for minutes. What is believed in the end: the files, the log that the
handlers write themselves, and the state of the broker.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from fileq.brokers.types import LedgerEntry
from fileq.core.job import State
from fileq.files.status import found_at
from tests.support.fault_proxy import FaultProxy
from tests.support.program import Program, run
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, WorkerSetup, is_running, is_still_running, on_files

FILES_AT_ONCE, FILES_PER_S = 20, 20
MOST_UNHANDLED = 1_000  # files that wait for a handler
SETTINGS: dict[str, object] = {
    "count": 4,
    "handlers": on_files("slow_and_unreliable"),
    "max_recoveries": 10_000,  # here many jobs die with a worker that another job killed
    "worker__backoff__max": "1s",
    "shutdown_timeout": "10s",
    "completed_max": 1_000_000,  # the check at the end asks for the record of every job
}


class Figures(Struct, frozen=True):
    """What happened in one run."""

    files: int
    completed: int
    recovered: int
    failed: int
    runs: int  # of handlers that came to their end, repeated ones included
    faults: dict[str, int]


def run_with_faults(faults: RandomFaults, seconds: float) -> Figures:
    """Raises AssertionError, with the seed, if something was lost or ended twice."""
    setup = faults.setup
    try:
        faults.inject(seconds)
        faults.stop_programs()
        after = setup.worker(role="all", **SETTINGS)
        wait_until(faults.is_over, 60 + seconds / 5, "everything is processed", every_s=0.2)
        assert after.stop() == 0
        return assert_nothing_is_lost(faults)
    except BaseException as error:
        error.add_note(f"CHAOS_SEED={faults.seed}: {', '.join(faults.injected)}\n{setup.census()}")
        raise


def assert_nothing_is_lost(faults: RandomFaults) -> Figures:
    setup = faults.setup
    census = setup.census()
    assert (census.dead, census.heartbeats, census.drift, setup.broker.workers()) == (0, 0, 0, [])
    counters = census.counters
    assert counters["completed"] == counters["produced"], "each job ended once"
    assert counters["recovered"] > 0, "at least one job was recovered"
    handled = setup.logged("file")
    ids = set(handled)
    assert all(entry.job_of(signature) in ids for entry, signature in faults.versions()), "each was handled"
    assert not any(map(is_still_running, setup.handler_log()))
    checked = run("admin", "fsck", cwd=setup.directory, settings=setup.all_settings(**SETTINGS))
    assert checked.returncode == 0, checked.stdout
    return Figures(
        files=len(faults.files),
        completed=counters["completed"],
        recovered=counters["recovered"],
        failed=counters.get("failed", 0),
        runs=len(handled),
        faults=dict(Counter(faults.injected)),
    )


class RandomFaults:
    """A producer, two workers, files that appear and change, and the faults that are injected."""

    def __init__(
        self, setup: WorkerSetup, seed: int, *, server: Server | None = None, proxy: FaultProxy | None = None
    ) -> None:
        self.setup = setup
        self.seed = seed
        self.draw = random.Random(self.seed)
        self.server = server
        self.injected: list[str] = []
        self.most_files = 0
        self._log_read = self._handled = 0
        self.files: list[Path] = []
        self.frozen: list[tuple[float, Program]] = []  # (resume at, program)
        self.settings = SETTINGS if proxy is None else {**SETTINGS, "redis__addr": f"127.0.0.1:{proxy.port}"}
        self.isolations = ["thread", "process"]
        self.workers = [self.start_worker(number) for number in range(2)]
        self.producer = self.start("producer")
        self.proxy = proxy
        self.faults: list[Callable[[], None]] = [self.freeze_a_worker, self.kill_a_child]
        if proxy is not None:
            self.faults += [self.reset_connections, self.lose_replies, self.stall_a_reply, self.drop_all_traffic]
            return  # a program that starts must reach its broker
        self.faults += [self.kill_a_worker, self.kill_the_producer, self.end_a_worker, self.end_a_worker_twice]
        if server is not None:
            self.faults += [self.kill_the_server, self.hang_the_server]

    def inject(self, seconds: float) -> None:
        self.most_files = round(100 + FILES_PER_S * seconds)
        self.write_files()
        wait_until(self.has_killed_a_job, 30, "a job dies", every_s=0.1)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.write_files()
            self.resume_workers(time.monotonic())
            fault = self.draw.choice(self.faults)
            self.injected.append(fault.__name__)
            fault()
            self.wait(0.0, 0.4)

    def stop_programs(self) -> None:
        """Ends all faults; every program stops with exit code 0."""
        self.resume_workers(float("inf"))
        if self.proxy is not None:
            self.proxy.clear()
        for program in (self.producer, *self.workers):
            assert program.stop(60) == 0

    def wait(self, least_s: float, most_s: float) -> None:
        time.sleep(self.draw.uniform(least_s, most_s))  # random on purpose: there is no condition to wait for

    # files

    def write_files(self) -> None:
        """Writes new files, but not more than the workers keep up with: on a bad network they are slow."""
        is_enough = len(self.files) >= self.most_files or len(self.files) > self.count_handled() + MOST_UNHANDLED
        for _ in range(0 if is_enough else FILES_AT_ONCE):
            self.files.append(self.setup.inbox / f"{len(self.files)}")
            self.files[-1].write_bytes(b"x" * self.draw.randrange(100))
        self.change_a_file()

    def count_handled(self) -> int:
        """How often a handler came to its end. Reads only what was logged since the last call."""
        with contextlib.suppress(FileNotFoundError), open(self.setup.directory / "handler_log", "rb") as log:
            log.seek(self._log_read)
            block = log.read()
            self._log_read += len(block)
            self._handled += block.count(b"file ")
        return self._handled

    def change_a_file(self) -> None:
        other = self.setup.directory / "other"
        other.write_bytes(b"y" * self.draw.randrange(100, 200))
        other.replace(self.draw.choice(self.files))

    def versions(self) -> list[tuple[LedgerEntry, str]]:
        """The ledger entry and the current signature of each file."""
        paths = [os.fsencode(path) for path in self.files]
        found = zip(self.setup.broker.lookup(paths), paths, strict=True)
        return [(entry or LedgerEntry(), found_at(path, os.stat(path)).signature) for entry, path in found]

    def is_over(self) -> bool:
        census = self.setup.census()
        if sum(census.pending.values()) or census.scheduled or census.running:
            return False
        if not all(worker.info is not None and is_running(worker.info.pid) for worker in self.setup.broker.workers()):
            return False  # the reapers have not finished
        jobs = [entry.job_of(signature) or "" for entry, signature in self.versions()]
        return all(record is not None and record.state is State.COMPLETED for record in self.setup.broker.records(jobs))

    # faults

    def start(self, role: str, **more: object) -> Program:
        return self.setup.worker(role=role, **{**self.settings, **more})

    def start_worker(self, number: int) -> Program:
        return self.start("worker", isolation=self.isolations[number])

    def replace_a_worker(self, *ends: signal.Signals) -> None:
        """Sends these signals to a worker and starts another one, while the first may still be running."""
        number = self.draw.randrange(2)
        worker = self.workers[number]
        worker.signal(signal.SIGCONT)
        for number_sent, end in enumerate(ends):
            if number_sent:
                self.wait(0.0, 0.05)
            worker.signal(end)
        self.workers[number] = self.start_worker(number)
        assert worker.wait(30) in (0, -signal.SIGKILL)

    def kill_a_worker(self) -> None:
        self.replace_a_worker(signal.SIGKILL)

    def end_a_worker(self) -> None:
        self.replace_a_worker(signal.SIGTERM)

    def end_a_worker_twice(self) -> None:
        self.replace_a_worker(signal.SIGTERM, signal.SIGTERM)

    def kill_a_child(self) -> None:
        running = {line.pid for line in self.setup.handler_log("begun")[-8:] if is_still_running(line)}
        children = running - {worker.process.pid for worker in self.workers}
        for pid in sorted(children)[:1]:
            os.kill(pid, signal.SIGKILL)

    def has_killed_a_job(self) -> bool:
        self.change_a_file()  # so that there is a job to kill, even if all others have ended
        self.kill_a_child()
        return self.setup.census().counters.get("recovered", 0) > 0

    def kill_the_producer(self) -> None:
        self.producer.signal(signal.SIGKILL)
        self.producer.wait()
        self.producer = self.start("producer")

    def freeze_a_worker(self) -> None:
        worker = self.draw.choice(self.workers)
        self.setup.freeze(worker)
        self.frozen.append((time.monotonic() + self.draw.uniform(0.5, 3.0) * TTL_S, worker))

    def resume_workers(self, now_s: float) -> None:
        for until_s, worker in self.frozen:
            if until_s <= now_s and worker.process.poll() is None:
                worker.signal(signal.SIGCONT)
        self.frozen = [(until_s, worker) for until_s, worker in self.frozen if until_s > now_s]

    def kill_the_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.wait(0.0, 1.5)
        self.server.start()

    def hang_the_server(self) -> None:
        assert self.server is not None
        self.server.pause()
        self.wait(0.1, 1.5)
        self.server.resume()

    def reset_connections(self) -> None:
        assert self.proxy is not None
        self.proxy.reset_all()

    def lose_replies(self) -> None:
        """Drops whole replies, the ends of replies, or requests."""
        assert self.proxy is not None
        for _ in range(self.draw.randrange(1, 6)):
            nth = self.draw.randrange(1, 30)
            self.proxy.drop_reply_when(nth=nth)
            self.proxy.cut_reply_when(after=self.draw.randrange(1, 300), nth=nth + self.draw.randrange(1, 30))
            self.proxy.reset_when(nth=nth + self.draw.randrange(1, 30))

    def stall_a_reply(self) -> None:
        assert self.proxy is not None
        self.proxy.stall_reply_when(after=self.draw.randrange(300), nth=self.draw.randrange(1, 30))

    def drop_all_traffic(self) -> None:
        assert self.proxy is not None
        self.proxy.black_hole()
        self.wait(0.1, 1.5 * TTL_S)
        self.proxy.restore()
