"""Many files, several producers, kill -9: every version is enqueued once and within the rate limit."""

import os
import random
import threading
import time
from collections import Counter

from tests.support.producer_setup import Place, jobs_of, pending, scanned, scanned_again, wait_pending
from tests.support.waiting import wait_until


def fill(place: Place, count: int) -> None:
    for n in range(count):
        directory = place.inbox / str(n // 500)
        if n % 500 == 0:
            directory.mkdir()
        os.close(os.open(directory / f"{n}.txt", os.O_CREAT | os.O_WRONLY))


def test_two_producers_killed_ten_times_each_enqueue_every_file_once(place: Place) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    fill(place, 5_000)
    # Slow, so that most producers are killed while they enqueue.
    settings = {"rate_limit_per_sec": 400, "settle_unclosed": "0s"}

    def start_and_kill(dice: random.Random) -> None:
        for n in range(10):
            # Two are killed while they start, the others while they work.
            with place.producer(**settings, wait=n % 5 > 0) as program:
                ends_s = time.monotonic() + dice.uniform(0.0, 0.6)
                wait_until(lambda ends_s=ends_s: time.monotonic() >= ends_s)
                program.kill()

    threads = [threading.Thread(target=start_and_kill, args=(random.Random(seed + n),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with place.open() as broker:
        enqueued = pending(broker)
        print(f"{enqueued} of 5000 enqueued when the last producer was killed")
        with place.producer(**settings, wait=False), place.producer(**settings, wait=False):
            wait_pending(broker, 5_000)
            [first, second] = [broker.census(), broker.census()]
        paths = Counter(job.path for job in jobs_of(broker))
        assert len(paths) == 5_000
        assert set(paths.values()) == {1}
        assert first.drift == second.drift == 0
        assert 0 < enqueued < 5_000, "no producer was killed while it enqueued: the test proves nothing"


def test_two_producers_share_the_rate_limit_and_use_it_up(place: Place) -> None:
    fill(place, 1_500)
    settings = {"rate_limit_per_sec": 200, "settle_unclosed": "0s"}
    with place.producer(**settings, wait=False), place.producer(**settings, wait=False), place.open() as broker:
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


def test_files_are_not_enqueued_again_after_scan_dir_was_empty_for_a_while(place: Place) -> None:
    """An unmounted volume looks like this: an empty directory at the same path."""
    names = [f"{n}/a" for n in range(50)]
    for name in names:
        place.write(name)
    aside = place.directory / "aside"
    with place.producer(rescan_interval="300ms") as program:
        place.wait_for_names(*names)
        place.inbox.rename(aside)
        place.inbox.mkdir()
        # the producer may or may not have noticed that scan_dir was missing in between
        wait_until(lambda: program.events("scan_dir.replaced") or program.events("scan_dir.restored"))
        scanned_again(program)
        assert program.readiness()[0] == 200
        place.inbox.rmdir()
        aside.rename(place.inbox)
        scanned_again(program)
        place.write("0/new")
        place.wait_for_names(*names, "0/new")
        scanned_again(program)
    assert place.names() == sorted([*names, "0/new"])


def test_producers_of_two_directories_leave_each_others_entries_alone(place: Place) -> None:
    other = place.directory / "in2"
    other.mkdir()
    ours = [place.write(name) for name in ("a", "gone")]
    theirs = [place.write(name, inbox=other) for name in ("a", "gone")]
    with place.open() as broker:
        with place.producer(), place.producer(inbox=other):
            wait_pending(broker, 4)
        os.unlink(ours[1])
        os.unlink(theirs[1])
        before = broker.lookup(theirs)
        with place.producer():
            # its own missing file is marked: so the sweep has run
            wait_until(lambda: (entry := broker.lookup(ours)[1]) is not None and entry.missing_since_ms, 15)
        assert broker.lookup(theirs) == before
        assert broker.lookup(ours)[0] is not None
        assert pending(broker) == 4


def test_a_scan_of_known_files_enqueues_nothing(place: Place) -> None:
    fill(place, 10_000)
    with place.producer(settle_unclosed="0s", observability__log_level="warn", wait=False), place.open() as broker:
        wait_pending(broker, 10_000)
    with place.producer(settle_unclosed="0s", rescan_interval="100ms") as program, place.open() as broker:
        scanned(program, 3, 60)
        assert program.metric("jobs_produced_total") == 0
        assert pending(broker) == 10_000
