"""Many files, several producers, kill -9: every version is enqueued once and within the rate limit."""

import os
import random
import threading
import time
from collections import Counter

from fileq.producer.ledger_stages import SWEEPS
from tests.support.producer_setup import BrokerSetup, jobs_of, pending, wait_for_new_scan, wait_for_scans, wait_pending
from tests.support.waiting import wait_until


def fill(broker_setup: BrokerSetup, count: int) -> None:
    for n in range(count):
        directory = broker_setup.inbox / str(n // 500)
        if n % 500 == 0:
            directory.mkdir()
        os.close(os.open(directory / f"{n}.txt", os.O_CREAT | os.O_WRONLY))


def test_two_producers_killed_ten_times_each_enqueue_every_file_once(broker_setup: BrokerSetup) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    fill(broker_setup, 5_000)
    # Slow, so that most producers are killed while they enqueue.
    settings = {"rate_limit_per_sec": 400, "settle_unclosed": "0s"}

    def start_and_kill(dice: random.Random) -> None:
        for n in range(10):
            # Two are killed while they start, the others while they work.
            with broker_setup.producer(**settings, wait=n % 5 > 0) as program:
                ends_s = time.monotonic() + dice.uniform(0.0, 0.6)
                wait_until(lambda ends_s=ends_s: time.monotonic() >= ends_s)
                program.kill()

    threads = [threading.Thread(target=start_and_kill, args=(random.Random(seed + n),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with broker_setup.open() as broker:
        enqueued = pending(broker)
        print(f"{enqueued} of 5000 enqueued when the last producer was killed")
        with broker_setup.producer(**settings, wait=False), broker_setup.producer(**settings, wait=False):
            wait_pending(broker, 5_000)
            [first, second] = [broker.census(), broker.census()]
        paths = Counter(job.path for job in jobs_of(broker))
        assert len(paths) == 5_000
        assert set(paths.values()) == {1}
        assert first.drift == second.drift == 0
        assert 0 < enqueued < 5_000, "no producer was killed while it enqueued: the test proves nothing"


def test_two_producers_share_the_rate_limit_and_use_it_up(broker_setup: BrokerSetup) -> None:
    fill(broker_setup, 1_500)
    settings = {"rate_limit_per_sec": 200, "settle_unclosed": "0s"}
    with (
        broker_setup.producer(**settings, wait=False),
        broker_setup.producer(**settings, wait=False),
        broker_setup.open() as broker,
    ):
        wait_pending(broker, 1_200)
        records = broker.records([job.id for job in jobs_of(broker)])
    times = sorted(record.created_ms for record in records if record is not None)
    windows = [0]
    window_start_ms = times[0]
    for time_ms in times:
        if time_ms >= window_start_ms + 1000:
            window_start_ms = time_ms
            windows.append(0)
        windows[-1] += 1
    in_five_seconds = sum(time_ms < times[0] + 5_000 for time_ms in times)
    print(f"windows {windows}, {in_five_seconds / 5} per second over 5 s")
    assert max(windows) <= 200
    assert 900 <= in_five_seconds <= 1_000


def test_files_are_not_enqueued_again_after_scan_dir_was_empty_for_a_while(broker_setup: BrokerSetup) -> None:
    """An unmounted volume looks like this: an empty directory at the same path."""
    names = [f"{n}/a" for n in range(50)]
    for name in names:
        broker_setup.write(name)
    aside = broker_setup.directory / "aside"
    with broker_setup.producer(rescan_interval="300ms") as program:
        broker_setup.wait_for_names(*names)
        broker_setup.inbox.rename(aside)
        broker_setup.inbox.mkdir()
        # the producer may or may not have noticed that scan_dir was missing in between
        wait_until(lambda: program.events("scan_dir.replaced") or program.events("scan_dir.restored"))
        wait_for_new_scan(program)
        assert program.readiness()[0] == 200
        broker_setup.inbox.rmdir()
        aside.rename(broker_setup.inbox)
        wait_for_new_scan(program)
        broker_setup.write("0/new")
        broker_setup.wait_for_names(*names, "0/new")
        wait_for_new_scan(program)
    assert broker_setup.names() == sorted([*names, "0/new"])


def test_producers_of_two_directories_leave_each_others_entries_alone(broker_setup: BrokerSetup) -> None:
    other = broker_setup.directory / "in2"
    other.mkdir()
    ours = [broker_setup.write(name) for name in ("a", "gone")]
    theirs = [broker_setup.write(name, inbox=other) for name in ("a", "gone")]
    with broker_setup.open() as broker:
        with broker_setup.producer(), broker_setup.producer(inbox=other):
            wait_pending(broker, 4)
        os.unlink(ours[1])
        os.unlink(theirs[1])
        before = broker.lookup(theirs)
        for name in SWEEPS.all(broker):  # as an hour later
            SWEEPS.remove(broker, name)
        with broker_setup.producer():
            # its own missing file is marked: so the sweep has run
            wait_until(lambda: (entry := broker.lookup(ours)[1]) is not None and entry.missing_since_ms, 15)
        assert broker.lookup(theirs) == before
        assert broker.lookup(ours)[0] is not None
        assert pending(broker) == 4


def test_a_scan_of_known_files_enqueues_nothing(broker_setup: BrokerSetup) -> None:
    fill(broker_setup, 10_000)
    with (
        broker_setup.producer(settle_unclosed="0s", observability__log_level="warn", wait=False),
        broker_setup.open() as broker,
    ):
        wait_pending(broker, 10_000)
    with broker_setup.producer(settle_unclosed="0s", rescan_interval="100ms") as program, broker_setup.open() as broker:
        wait_for_scans(program, 3, 60)
        assert program.metric("jobs_produced_total") == 0
        assert pending(broker) == 10_000
