"""Everything dies, again and again, at moments nobody chose; and then every file was processed and nothing is left.

A failure tells its seed. CHAOS_SEED=… has the same disasters in the same order, though never at the same instants;
CHAOS_S=300 has many more of them.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fileq.brokers.types import LedgerEntry
from fileq.core.job import State
from fileq.producer.finder.found_file import found_at
from tests.support.fault_proxy import FaultProxy
from tests.support.parallel_scenarios import server_beside, together, under_way
from tests.support.program import Program, run
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, Farm, is_running, is_still_running, on_files

__all__ = ["under_way"]
CHAOS_S = float(os.environ.get("CHAOS_S", "8"))
LONGEST_S = CHAOS_S + 400  # more than all that is waited for: the storm itself tells its seed
FILES_AT_ONCE, MOST_FILES = 20, 100 + 20 * int(CHAOS_S)
pytestmark = pytest.mark.timeout(LONGEST_S + 20)
SETTINGS: dict[str, object] = {
    "count": 4,
    "handlers": on_files("in_a_storm"),
    "max_recoveries": 10_000,  # many die beside a culprit here
    "worker__backoff__max": "1s",
    "shutdown_timeout": "10s",
}


@together("valkey", timeout_s=LONGEST_S)
def test_whatever_dies_around_a_server_every_file_is_processed_and_nothing_is_left(farm: Farm) -> None:
    with server_beside(farm) as (server, farm):
        survive(Storm(farm, server=server))


@together("valkey", timeout_s=LONGEST_S)
def test_whatever_is_lost_on_the_wire_every_file_is_processed_and_nothing_is_left(farm: Farm) -> None:
    with server_beside(farm) as (server, farm), FaultProxy(server.port) as wire:
        survive(Storm(farm, wire=wire))


@together("sqlite", timeout_s=LONGEST_S)
def test_whatever_dies_around_a_database_every_file_is_processed_and_nothing_is_left(farm: Farm) -> None:
    survive(Storm(farm))


def survive(storm: Storm) -> None:
    farm = storm.farm
    try:
        storm.rage(CHAOS_S)
        storm.end()
        after = farm.worker(role="all", **SETTINGS)
        wait_until(storm.is_over, 60, "everything is processed", every_s=0.2)
        assert after.stop() == 0
        assert_all_is_well(storm)
    except BaseException as error:
        error.add_note(f"CHAOS_SEED={storm.seed}: {', '.join(storm.told)}\n{farm.census()}")
        raise


def assert_all_is_well(storm: Storm) -> None:
    farm = storm.farm
    census = farm.census()
    assert (census.dead, census.heartbeats, census.drift, farm.broker.workers()) == (0, 0, 0, [])
    counters = census.counters
    assert counters["completed"] == counters["produced"], "each job ended once"
    assert counters["recovered"] > 0, "there was a storm"
    told = set(farm.told("file"))
    assert all(dict(entry.versions)[signature] in told for entry, signature in storm.versions()), "each was handled"
    assert not any(map(is_still_running, farm.diary()))
    checked = run("admin", "fsck", cwd=farm.directory, settings=farm.all_settings(**SETTINGS))
    assert checked.returncode == 0, checked.stdout


class Storm:
    """A producer, two workers, files that come and change; and what befalls them."""

    def __init__(self, farm: Farm, *, server: Server | None = None, wire: FaultProxy | None = None) -> None:
        self.farm = farm
        self.seed = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(1_000_000))
        self.draw = random.Random(self.seed)
        self.server = server
        self.told: list[str] = []
        self.files: list[Path] = []
        self.frozen: list[tuple[float, Program]] = []  # until when
        self.settings = SETTINGS if wire is None else {**SETTINGS, "redis__addr": f"127.0.0.1:{wire.port}"}
        self.isolations = ["thread", "process"]
        self.workers = [self.start_worker(number) for number in range(2)]
        self.producer = self.start("producer")
        self.wire = wire
        self.disasters: list[Callable[[], None]] = [self.freeze_a_worker, self.kill_a_child]
        if wire is not None:
            self.disasters += [self.cut_the_wire, self.lose_replies, self.stall_a_reply, self.swallow_everything]
            return  # what starts must find its broker
        self.disasters += [self.kill_a_worker, self.kill_the_producer, self.end_a_worker, self.hurry_a_worker]
        if server is not None:
            self.disasters += [self.kill_the_server, self.hang_the_server]

    def rage(self, seconds: float) -> None:
        self.write_files()
        wait_until(self.has_killed_a_job, 30, "a job dies", every_s=0.1)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.write_files()
            self.thaw(time.monotonic())
            disaster = self.draw.choice(self.disasters)
            self.told.append(disaster.__name__)
            disaster()
            self.wait(0.0, 0.4)

    def end(self) -> None:
        """What is alive stops as it should."""
        self.thaw(float("inf"))
        if self.wire is not None:
            self.wire.clear()
        for program in (self.producer, *self.workers):
            assert program.stop(60) == 0

    def wait(self, least_s: float, most_s: float) -> None:
        time.sleep(self.draw.uniform(least_s, most_s))  # by chance: there is nothing to wait for

    # files

    def write_files(self) -> None:
        for _ in range(FILES_AT_ONCE if len(self.files) < MOST_FILES else 0):
            self.files.append(self.farm.inbox / f"{len(self.files)}")
            self.files[-1].write_bytes(b"x" * self.draw.randrange(100))
        other = self.farm.directory / "other"
        other.write_bytes(b"y" * self.draw.randrange(100, 200))
        other.replace(self.draw.choice(self.files))

    def versions(self) -> list[tuple[LedgerEntry, str]]:
        """What is known of each file, and the signature it has."""
        paths = [os.fsencode(path) for path in self.files]
        found = zip(self.farm.broker.lookup(paths), paths, strict=True)
        return [(entry or LedgerEntry(), found_at(path, os.stat(path)).signature) for entry, path in found]

    def is_over(self) -> bool:
        census = self.farm.census()
        if sum(census.pending.values()) or census.scheduled or census.running:
            return False
        if not all(worker.info is not None and is_running(worker.info.pid) for worker in self.farm.broker.workers()):
            return False  # the reapers are still at it
        jobs = [dict(entry.versions).get(signature, "") for entry, signature in self.versions()]
        return all(record is not None and record.state is State.COMPLETED for record in self.farm.broker.records(jobs))

    # disasters

    def start(self, role: str, **more: object) -> Program:
        return self.farm.worker(role=role, **{**self.settings, **more})

    def start_worker(self, number: int) -> Program:
        return self.start("worker", isolation=self.isolations[number])

    def replace_a_worker(self, *ends: signal.Signals) -> None:
        """After these signals another is started; the one that is replaced may still be at it."""
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

    def hurry_a_worker(self) -> None:
        self.replace_a_worker(signal.SIGTERM, signal.SIGTERM)

    def kill_a_child(self) -> None:
        running = {line.pid for line in self.farm.diary("begun")[-8:] if is_still_running(line)}
        children = running - {worker.process.pid for worker in self.workers}
        for pid in sorted(children)[:1]:
            os.kill(pid, signal.SIGKILL)

    def has_killed_a_job(self) -> bool:
        self.kill_a_child()
        return self.farm.census().counters.get("recovered", 0) > 0

    def kill_the_producer(self) -> None:
        self.producer.signal(signal.SIGKILL)
        self.producer.wait()
        self.producer = self.start("producer")

    def freeze_a_worker(self) -> None:
        worker = self.draw.choice(self.workers)
        self.farm.freeze(worker)
        self.frozen.append((time.monotonic() + self.draw.uniform(0.5, 3.0) * TTL_S, worker))

    def thaw(self, now_s: float) -> None:
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

    def cut_the_wire(self) -> None:
        assert self.wire is not None
        self.wire.reset_all()

    def lose_replies(self) -> None:
        """Whole ones, their ends, or requests."""
        assert self.wire is not None
        for _ in range(self.draw.randrange(1, 6)):
            nth = self.draw.randrange(1, 30)
            self.wire.drop_reply_when(nth=nth)
            self.wire.cut_reply_when(after=self.draw.randrange(1, 300), nth=nth + self.draw.randrange(1, 30))
            self.wire.reset_when(nth=nth + self.draw.randrange(1, 30))

    def stall_a_reply(self) -> None:
        assert self.wire is not None
        self.wire.stall_reply_when(after=self.draw.randrange(300), nth=self.draw.randrange(1, 30))

    def swallow_everything(self) -> None:
        assert self.wire is not None
        self.wire.black_hole()
        self.wait(0.1, 1.5 * TTL_S)
        self.wire.restore()
