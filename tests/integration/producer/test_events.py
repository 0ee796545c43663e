"""Changes in the directory while the producer runs: found at once by events, or later by a scan."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.producer_setup import BrokerSetup, jobs_of, pending, wait_for_new_scan, wait_for_scans, wait_pending
from tests.support.waiting import wait_until

NEVER = {"rescan_interval": "1h"}  # only events can find the files


def test_a_closed_file_gets_a_job_before_the_next_scan(broker_setup: BrokerSetup) -> None:
    with broker_setup.producer(**NEVER) as program:
        wait_for_scans(program)
        broker_setup.write("a")
        broker_setup.wait_for_names("a", timeout_s=5)
        assert program.metric("producer_scan_duration_seconds_count") == 1


@pytest.mark.parametrize("how", ["file", "directory"])
def test_a_file_that_is_moved_in_gets_a_job_before_the_next_scan(on_sqlite: BrokerSetup, how: str) -> None:
    broker_setup = on_sqlite
    aside = broker_setup.directory / "aside"
    (aside / "deep/er").mkdir(parents=True)
    (aside / "deep/er/a").write_bytes(b"x")
    with broker_setup.producer(**NEVER) as program:
        wait_for_scans(program)
        source = aside / ("deep/er/a" if how == "file" else "deep")
        source.rename(broker_setup.inbox / source.name)
        broker_setup.wait_for_names("a" if how == "file" else "deep/er/a", timeout_s=5)


def test_every_file_of_a_tree_created_at_once_is_found(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    with broker_setup.producer(**NEVER) as program:
        wait_for_scans(program)
        names = [f"{a}/{b}/{c}" for a in "xyz" for b in "uvw" for c in range(5)]
        for name in names:
            broker_setup.write(name)
        broker_setup.wait_for_names(*names, timeout_s=10)
        broker_setup.write("x/u/new/later")
        broker_setup.wait_for_names(*names, "x/u/new/later", timeout_s=5)


def test_every_hard_link_gets_a_job(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    (broker_setup.directory / "aside").write_bytes(b"x")
    with broker_setup.producer(**NEVER) as program:
        wait_for_scans(program)
        os.link(broker_setup.directory / "aside", broker_setup.inbox / "a")
        os.link(broker_setup.directory / "aside", broker_setup.inbox / "b")
        broker_setup.wait_for_names("a", "b", timeout_s=5)


def test_a_directory_renamed_within_the_tree_is_still_watched(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    broker_setup.write("old/sub/a")
    with broker_setup.producer(**NEVER) as program:
        broker_setup.wait_for_names("old/sub/a")
        wait_for_scans(program)
        (broker_setup.inbox / "old").rename(broker_setup.inbox / "new")
        broker_setup.wait_for_names("new/sub/a", "old/sub/a", timeout_s=5)
        broker_setup.write("new/sub/b")
        broker_setup.wait_for_names("new/sub/a", "new/sub/b", "old/sub/a", timeout_s=5)


def test_polling_finds_files_without_events(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    with broker_setup.producer(**NEVER, watch="poll", poll_interval="100ms") as program:
        wait_for_scans(program)
        broker_setup.write("deep/a")
        broker_setup.wait_for_names("deep/a", timeout_s=5)


def test_all_files_of_a_burst_are_found_even_if_events_were_lost(broker_setup: BrokerSetup) -> None:
    """Two events for each of 20,000 files are more than the kernel keeps while the producer is stopped."""
    with broker_setup.producer(**NEVER) as program, broker_setup.open() as broker:
        wait_for_scans(program)
        program.signal(signal.SIGSTOP)
        for n in range(20_000):
            os.close(os.open(broker_setup.inbox / f"{n}.txt", os.O_CREAT | os.O_WRONLY))
        program.signal(signal.SIGCONT)
        wait_pending(broker, 20_000)
        assert len(program.events("producer.events_lost")) == 1
        wait_for_scans(program, 2)
        assert program.metric("producer_scan_duration_seconds_count") == 2
        assert pending(broker) == 20_000
        assert broker.census().drift == 0


def test_no_unfinished_file_gets_a_job(broker_setup: BrokerSetup) -> None:
    """A writer appends to 50 files with pauses of up to 2 s; the settle times are 3 s. One producer scans all the
    time, the other one relies on events."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    writer = SlowWriter(broker_setup.inbox, 50, random.Random(seed))
    settings = {"settle": "3s", "settle_unclosed": "3s"}
    with (
        broker_setup.producer(**settings, rescan_interval="500ms") as scanning,
        broker_setup.producer(**settings, **NEVER),
        broker_setup.open() as broker,
    ):
        writer.write_everything()
        wait_pending(broker, 50)
        wait_for_new_scan(scanning)
        assert {job.path: job.filesize for job in jobs_of(broker)} == writer.finished
        assert pending(broker) == 50


class SlowWriter:
    """Half of the files stay open while they are written, the others are closed after each piece."""

    def __init__(self, inbox: Path, count: int, dice: random.Random) -> None:
        self._dice = dice
        paths = [bytes(inbox / f"{n}.txt") for n in range(count)]
        self._open: dict[bytes, int] = {}
        self._closing = set(paths[::2])
        self._pieces = {path: dice.randint(2, 4) for path in paths}
        self.finished: dict[bytes, int] = {}

    def _opened(self, path: bytes) -> int:
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write_everything(self) -> None:
        due = dict.fromkeys(self._pieces, 0.0)
        while due:
            path = min(due, key=due.__getitem__)
            wait_until(lambda path=path: time.monotonic() >= due[path])
            if path not in self._open:
                self._open[path] = self._opened(path)
            self._write(path)
            self._pieces[path] -= 1
            if self._pieces[path]:
                due[path] = time.monotonic() + self._dice.uniform(0.0, 2.0)
            else:
                os.close(self._open.pop(path))
                del due[path]
                self.finished[path] = os.path.getsize(path)

    def _write(self, path: bytes) -> None:
        os.write(self._open[path], b"x" * self._dice.randint(1, 1000))
        if path in self._closing:
            os.close(self._open[path])
            self._open[path] = self._opened(path)
