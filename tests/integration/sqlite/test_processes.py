"""Several processes share one database, some of them are killed: no acknowledged job is lost, every waiter wakes."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from fileq.brokers.rules import unit_of_work
from fileq.brokers.sqlite import SqliteBroker, database
from fileq.brokers.sqlite.broker import monotonic_clock_ms
from fileq.brokers.types import WireEvent
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import decode
from fileq.core.settlement import complete, release
from tests.support.sqlite_process import a_config, a_worker, an_entry, read_line, send_line, started
from tests.support.waiting import wait_until

PLACES = ("high", "low", "scheduled", "dead_letter", "completed", "cancelled")
ROUNDS = 4
LONG_S = 30.0  # only a failing test waits so long


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fileq.db"


@pytest.fixture
def broker(path: Path) -> Iterator[SqliteBroker]:
    with closing(SqliteBroker(a_config(path))) as broker:
        yield broker


def ids_in(broker: SqliteBroker, place: str) -> list[str]:
    return [decode(raw).id for page in broker.pages(place) for raw in page]


# killed at random


def killed_after(process: subprocess.Popen[str], lines: int) -> list[str]:
    """Everything the process printed until it was killed, at a random moment after that many lines."""
    printed = [read_line(process) for _ in range(lines)]
    process.kill()
    assert process.stdout is not None
    return printed + process.stdout.read().split("\n")[:-1]  # the last line may be cut off


def run_and_kill(path: Path, chance: random.Random) -> list[str]:
    """Runs rounds of two producers and two workers, killed one after the other while the rest work.

    Returns every line they printed."""
    printed: list[str] = []
    for number in range(ROUNDS):
        with ExitStack() as stack:
            processes = [
                stack.enter_context(started(call, path, f"{call}-{number}-{i}"))
                for call in ("produce", "work")
                for i in range(2)
            ]
            chance.shuffle(processes)
            for process in processes:
                printed += killed_after(process, chance.randint(1, 40))
    return printed


def reap_everything(path: Path) -> None:
    """Releases the jobs of all dead slots, by a reaper whose clock is one heartbeat TTL ahead."""
    config = a_config(path)
    ttl_ms = int(config.worker.heartbeat_ttl * 1000)
    with closing(SqliteBroker(config, monotonic=lambda: monotonic_clock_ms() + ttl_ms)) as reaper:
        for suspect in reaper.suspects(sweep=True):
            reaper.reap(suspect.slot, [release(claim, died=True) for claim in suspect.claims])


def test_processes_killed_at_random_lose_nothing_and_double_nothing(path: Path):
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    with closing(SqliteBroker(a_config(path))):
        acknowledged = run_and_kill(path, random.Random(seed))
        reap_everything(path)
    with closing(SqliteBroker(a_config(path))) as broker:
        places = {place: ids_in(broker, place) for place in PLACES}
        census = broker.census()
    everywhere = Counter(id for ids in places.values() for id in ids)
    words = [line.split() for line in acknowledged]
    enqueued = {id for verb, *ids in words if verb == "enqueued" for id in ids}
    completed = {id for verb, *ids in words if verb == "completed" for id in ids}
    assert enqueued
    assert completed
    assert set(everywhere.values()) == {1}
    assert enqueued <= set(everywhere)
    assert completed <= set(places["completed"])
    assert census.counters["produced"] == len(everywhere)
    assert (census.drift, census.running, census.heartbeats) == (0, 0, 0)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_call_killed_at_any_of_its_statements_took_effect_completely_or_not_at_all(path: Path):
    findings = []
    with started("die_in_each_statement", path) as process:
        while line := read_line(process):
            findings.append(json.loads(line))
    assert len(findings) > 20
    assert {(is_whole, drift) for is_whole, _, drift in findings} == {(True, 0)}
    results = [set(results) for _, results, _ in findings]
    # Killed before the commit, the call had no effect and takes effect when repeated. Later, it is done already.
    assert results[0] == {"done"}
    assert results[-1] == {"done already"}
    assert all(result in ({"done"}, {"done already"}) for result in results)


# the write lock


def test_a_process_killed_while_it_writes_does_not_block_others(path: Path, broker: SqliteBroker):
    with started("write_for_ever", path) as process:
        process.kill()
        process.wait()
        broker.enqueue([an_entry("a")])
    assert ids_in(broker, "low") == ["a"]


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(path: Path, broker: SqliteBroker):
    with started("fork_in_a_transaction", path) as process:
        child = int(read_line(process))
        try:
            process.kill()
            process.wait()
            broker.enqueue([an_entry("a")])
        finally:
            os.kill(child, signal.SIGKILL)
    assert ids_in(broker, "low") == ["a"]


def test_a_writer_that_never_ends_makes_the_broker_unavailable_instead_of_blocking(path: Path, broker, monkeypatch):
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
    with started("write_for_ever", path) as process:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="another process has been writing"):
                broker.enqueue([an_entry("a")])
        assert broker.census().pending == {"high": 0, "low": 0}, "reading needs no lock"
        monkeypatch.setattr(database, "LOCK_TIMEOUT_S", LONG_S)
        send_line(process)
        broker.enqueue([an_entry("a")])
    assert ids_in(broker, "low") == ["a"]


def test_closing_while_another_process_writes_leaves_the_lock_free(path: Path, broker, monkeypatch):
    with started("write_for_ever", path) as process:
        with monkeypatch.context() as patch, closing(SqliteBroker(a_config(path))) as gives_up:
            patch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
            with pytest.raises(BrokerUnavailable):
                gives_up.enqueue([an_entry("a")])
        send_line(process)
        assert read_line(process) == "written"
    broker.enqueue([an_entry("b")])
    assert ids_in(broker, "low") == ["b"]


# forks


def test_a_broker_raises_when_used_after_a_fork(path: Path):
    with started("use_after_fork", path) as process:
        for _ in range(2):
            assert "after a fork open it again" in read_line(process)
        assert json.loads(read_line(process)) == {"high": 0, "low": 1}


# waking and events


def test_a_push_by_another_process_wakes_a_waiter(path: Path, broker: SqliteBroker):
    with started("enqueue", path, "a") as process, closing(broker.waiter()) as waiter:
        waiter.arm()
        assert not waiter.wait(0), "no job is there yet"
        send_line(process)
        assert waiter.wait(LONG_S)
    broker.register({"w": a_worker()})
    assert [claim.id for claim in broker.settle_and_claim([], ["w"]).claims] == ["a"]


def test_a_push_of_another_process_to_a_paused_queue_does_not_wake_a_waiter(path: Path, broker):
    broker.pause("low")
    with started("enqueue", path, "a") as process, closing(broker.waiter()) as waiter:
        waiter.arm()
        send_line(process)
        assert process.wait(LONG_S) == 0
        assert not waiter.wait(0.1)
        broker.resume("low")
        assert waiter.wait(LONG_S)


def test_every_push_wakes_a_waiter_armed_before_it(path: Path, broker: SqliteBroker):
    broker.register({"w": a_worker()})
    with closing(SqliteBroker(a_config(path))) as other, closing(broker.waiter()) as waiter:
        for number in range(20):
            waiter.arm()
            other.enqueue([an_entry(f"job-{number}")])
            assert waiter.wait(LONG_S)
            [claim] = broker.settle_and_claim([], ["w"]).claims
            broker.settle_and_claim([complete(claim)], [])


def test_a_subscription_delivers_events_of_other_processes(path: Path, broker: SqliteBroker):
    with started("enqueue", path, "a", "b") as process, closing(broker.subscribe()) as subscription:
        send_line(process)
        received = [msgspec.json.decode(subscription.get(LONG_S) or b"", type=WireEvent) for _ in range(2)]
    assert [(event.event, event.job_id) for event in received] == [("job:created", "a"), ("job:created", "b")]


def test_events_are_written_only_while_a_subscriber_lives(path: Path, broker: SqliteBroker):
    def written() -> int:
        with broker.store.database.snapshot() as db:
            return db.execute("SELECT count(*) FROM events").fetchone()[0]

    broker.enqueue([an_entry("a")])
    assert written() == 0
    with started("subscribe", path) as subscriber:
        broker.enqueue([an_entry("b")])
        assert written() == 1
        subscriber.kill()
        subscriber.wait()
        broker.enqueue([an_entry("c")])
    assert written() == 1


def test_only_the_newest_events_are_kept(broker: SqliteBroker, monkeypatch):
    monkeypatch.setattr(unit_of_work, "EVENTS_KEPT", 3)
    with closing(broker.subscribe()) as slow:
        for number in range(10):
            broker.enqueue([an_entry(f"job-{number}")])
        received = iter(lambda: slow.get(0), None)
        assert [msgspec.json.decode(event, type=WireEvent).job_id for event in received] == ["job-7", "job-8", "job-9"]


def test_closing_leaves_no_thread_and_no_descriptor(path: Path):
    def open_files() -> list[str]:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sorted(os.readlink(link) for link in links if os.path.islink(link))

    files, threads = open_files(), set(threading.enumerate())
    broker = SqliteBroker(a_config(path))
    waiter, _ = broker.waiter(), broker.subscribe()
    waiter.arm()
    assert wait_until(lambda: len(open_files()) > len(files) + 5 and set(threading.enumerate()) - threads)
    broker.close()
    assert set(threading.enumerate()) == threads
    assert open_files() == files
    broker.close()
    waiter.close()
