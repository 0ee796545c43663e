"""`fileq all --once` and `fileq worker --once`: everything there is to do, and an exit code that says how it went."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from fileq.brokers.types import Entry
from fileq.job import typed_job
from tests.integration import program
from tests.integration.working import Farm, on_files


def all_once(farm: Farm, **settings: object) -> subprocess.CompletedProcess[str]:
    arguments = ("all", str(farm.inbox), "--once", "--app-dir", str(farm.directory))
    return program.run(*arguments, cwd=farm.directory, settings=farm.all_settings(**settings), timeout_s=100)


def test_two_thousand_files_are_processed_once_each(sqlite_farm: Farm) -> None:
    farm = sqlite_farm
    for n in range(2000):
        (farm.inbox / f"{n:04}.{'pdf' if n % 10 == 0 else 'txt'}").write_bytes(b"x" * (n % 7))
    ended = all_once(farm, handlers=on_files("on_file"))
    assert ended.returncode == 0, ended.stderr
    assert "completed 2000, retried 0, dead 0" in ended.stdout
    told = farm.told("file")
    assert len(told) == len(set(told)) == 2000
    census = farm.census()
    assert (census.drift, census.running, census.heartbeats, census.scheduled) == (0, 0, 0, 0)
    assert (census.counters["produced"], census.counters["completed"]) == (2000, 2000)
    assert farm.broker.workers() == []
    again = all_once(farm, handlers=on_files("on_file"))
    assert (again.returncode, len(farm.told("file"))) == (0, 2000)


def test_a_job_that_died_in_this_run_is_exit_3_and_one_that_was_dead_before_is_not(sqlite_farm: Farm) -> None:
    farm = sqlite_farm
    (farm.inbox / "file").write_bytes(b"x")
    ended = all_once(farm, handlers=on_files("fails"), max_retries=1)
    assert ended.returncode == 3, ended.stderr
    assert "completed 0, retried 1, dead 1" in ended.stdout
    assert farm.census().dead == 1
    assert all_once(farm, handlers=on_files("fails")).returncode == 0


def test_paused_and_scheduled_jobs_are_left_and_reported_and_retries_are_waited_for(each_farm: Farm) -> None:
    farm = each_farm
    farm.broker.pause("high")
    farm.enqueue("note", "paused-1", "paused-2", queue="high")
    later = typed_job("note", None, priority="low", now=datetime.now(UTC), id="tomorrow")
    farm.broker.enqueue([Entry(later, "low", delay_ms=86_400_000)])
    farm.enqueue("fails_twice", "twice")
    ended = all_once(farm)
    assert ended.returncode == 0, ended.stderr
    assert "left 2 in high, which is paused" in ended.stdout
    assert "left 1 scheduled for later" in ended.stdout
    assert farm.states(["twice"]) == {"completed": 1}
    assert farm.states(["paused-1", "paused-2"]) == {"pending": 2}
    assert farm.states(["tomorrow"]) == {"scheduled": 1}
    assert farm.told("note") == []
    assert farm.census().drift == 0


def test_a_worker_once_ends_when_nothing_is_left_and_scans_nothing(each_farm: Farm) -> None:
    farm = each_farm
    (farm.inbox / "file").write_bytes(b"x")
    farm.enqueue("note", "one", "two")
    farm.enqueue("fails", "dies", max_retries=0)
    arguments = ("worker", str(farm.inbox), "--once", "--app-dir", str(farm.directory))
    ended = program.run(*arguments, cwd=farm.directory, settings=farm.all_settings(handlers=on_files("on_file")))
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("completed 2, retried 0, dead 1 in ")
    assert sorted(farm.told("note")) == ["one", "two"]
    assert farm.told("file") == []
    assert program.run(*arguments, cwd=farm.directory, settings=farm.all_settings()).returncode == 0
