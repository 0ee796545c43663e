"""Changes in the directory while the producer runs: found at once by events, or later by a scan."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.producer_setup import Place, jobs_of, pending, scanned, scanned_again, wait_pending
from tests.support.waiting import wait_until

NEVER = {"rescan_interval": "1h"}  # only events can find the files


def test_a_closed_file_gets_a_job_before_the_next_scan(place: Place) -> None:
    with place.producer(**NEVER) as program:
        scanned(program)
        place.write("a")
        place.wait_for_names("a", timeout_s=5)
        assert program.metric("producer_scan_duration_seconds_count") == 1


@pytest.mark.parametrize("how", ["file", "directory"])
def test_a_file_that_is_moved_in_gets_a_job_before_the_next_scan(on_sqlite: Place, how: str) -> None:
    place = on_sqlite
    aside = place.directory / "aside"
    (aside / "deep/er").mkdir(parents=True)
    (aside / "deep/er/a").write_bytes(b"x")
    with place.producer(**NEVER) as program:
        scanned(program)
        source = aside / ("deep/er/a" if how == "file" else "deep")
        source.rename(place.inbox / source.name)
        place.wait_for_names("a" if how == "file" else "deep/er/a", timeout_s=5)


def test_every_file_of_a_tree_created_at_once_is_found(on_sqlite: Place) -> None:
    place = on_sqlite
    with place.producer(**NEVER) as program:
        scanned(program)
        names = [f"{a}/{b}/{c}" for a in "xyz" for b in "uvw" for c in range(5)]
        for name in names:
            place.write(name)
        place.wait_for_names(*names, timeout_s=10)
        place.write("x/u/new/later")
        place.wait_for_names(*names, "x/u/new/later", timeout_s=5)


def test_every_hard_link_gets_a_job(on_sqlite: Place) -> None:
    place = on_sqlite
    (place.directory / "aside").write_bytes(b"x")
    with place.producer(**NEVER) as program:
        scanned(program)
        os.link(place.directory / "aside", place.inbox / "a")
        os.link(place.directory / "aside", place.inbox / "b")
        place.wait_for_names("a", "b", timeout_s=5)


def test_a_directory_renamed_within_the_tree_is_still_watched(on_sqlite: Place) -> None:
    place = on_sqlite
    place.write("old/sub/a")
    with place.producer(**NEVER) as program:
        place.wait_for_names("old/sub/a")
        scanned(program)
        (place.inbox / "old").rename(place.inbox / "new")
        place.wait_for_names("new/sub/a", "old/sub/a", timeout_s=5)
        place.write("new/sub/b")
        place.wait_for_names("new/sub/a", "new/sub/b", "old/sub/a", timeout_s=5)


def test_polling_finds_files_without_events(on_sqlite: Place) -> None:
    place = on_sqlite
    with place.producer(**NEVER, watch="poll", poll_interval="100ms") as program:
        scanned(program)
        place.write("deep/a")
        place.wait_for_names("deep/a", timeout_s=5)


def test_all_files_of_a_burst_are_found_even_if_events_were_lost(place: Place) -> None:
    """Two events for each of 20,000 files are more than the kernel keeps while the producer is stopped."""
    with place.producer(**NEVER) as program, place.open() as broker:
        scanned(program)
        program.signal(signal.SIGSTOP)
        for n in range(20_000):
            os.close(os.open(place.inbox / f"{n}.txt", os.O_CREAT | os.O_WRONLY))
        program.signal(signal.SIGCONT)
        wait_pending(broker, 20_000)
        assert len(program.events("producer.events_lost")) == 1
        scanned(program, 2)
        assert program.metric("producer_scan_duration_seconds_count") == 2
        assert pending(broker) == 20_000
        assert broker.census().drift == 0


def test_no_unfinished_file_gets_a_job(place: Place) -> None:
    """A writer appends to 50 files with pauses of up to 2 s; the settle times are 3 s. One producer scans all the
    time, the other one relies on events."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    writer = SlowWriter(place.inbox, 50, random.Random(seed))
    settings = {"settle": "3s", "settle_unclosed": "3s"}
    with (
        place.producer(**settings, rescan_interval="500ms") as scanning,
        place.producer(**settings, **NEVER),
        place.open() as broker,
    ):
        writer.write_everything()
        wait_pending(broker, 50)
        scanned_again(scanning)
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
