"""A handler that crashes its process harms its own job only. The installed program."""

from __future__ import annotations

import os
import signal

from fileq.core.job import State
from tests.support.waiting import wait_until
from tests.support.worker_setup import Farm, ids, is_running


def test_the_job_of_a_killed_child_runs_again_at_once(farm: Farm) -> None:
    """Long before any heartbeat could have run out."""
    farm.worker(count=2, heartbeat_ttl="60s", reap_interval="60s")
    jobs = farm.enqueue("gated", "hit", "bystander")
    farm.wait_told("start", 2)
    [child] = [line.pid for line in farm.diary("start") if line.id == "hit"]
    os.kill(child, signal.SIGKILL)
    assert farm.wait_told("start", 3)[2] == "hit"
    farm.open_gate()
    farm.wait_for(State.COMPLETED, jobs)
    died = farm.record("hit").attempts[0]
    assert died.outcome == "died"
    assert "SIGKILL" in died.error
    assert (farm.job("hit").recoveries, farm.job("hit").retries) == (1, 0)
    assert farm.record("bystander").attempt_count == 1


def test_a_job_that_always_kills_its_child_is_dead_after_max_recoveries(farm: Farm) -> None:
    farm.worker(count=2, max_recoveries=2)
    farm.enqueue("segfaults", "culprit")
    farm.wait_for(State.DEAD, ["culprit"])
    assert len(farm.told("start")) == 3
    dead = farm.job("culprit")
    assert "SIGSEGV" in (dead.error or "")
    assert (dead.retries, dead.recoveries) == (0, 3)
    assert {attempt.outcome for attempt in farm.record("culprit").attempts} == {"died"}


def test_a_handler_that_crashes_hangs_or_leaks_harms_its_own_job_only(each_farm: Farm) -> None:
    farm = each_farm
    worker = farm.worker(count=16, max_recoveries=0, max_retries=0, max_memory="200MB")
    # One slot is left for the jobs that go wrong, one after the other: each of them has to free it.
    others = farm.enqueue("gated", *ids("other", 15))
    farm.wait_told("start", 15)
    wrong = {
        "segfaults": "SIGSEGV",
        "exits": "7",
        "loops": "timed out after 1s",
        "eats": "memory",
        "unpicklable": "Local: of no fixed abode",
    }
    for type in (*wrong, "leaves", "not_json"):
        farm.enqueue(type, type)
    assert farm.wait_ended([*wrong, "leaves", "not_json"]) == {"dead": 5, "completed": 2}
    for type, words in wrong.items():
        assert words in (farm.job(type).error or ""), type
    # Deaths count recoveries; exceptions, timeouts and memory count retries.
    counted = {type: (farm.job(type).recoveries, farm.job(type).retries) for type in wrong}
    assert counted == {
        "segfaults": (1, 0),
        "exits": (1, 0),
        "loops": (0, 1),
        "eats": (0, 1),
        "unpicklable": (0, 1),
    }
    assert farm.record("not_json").result == b""
    assert worker.wait_for("job.result_dropped")["job_id"] == "not_json"
    assert len(farm.diary("left")) == 2
    wait_until(lambda: not any(is_running(line.pid) for line in farm.diary("left")), 5, "grandchildren are gone")
    assert farm.states(others) == {"running": 15}
    farm.open_gate()
    farm.wait_for(State.COMPLETED, others)
    assert sorted(farm.told("start")[:15]) == sorted(others)
    assert {farm.record(other).attempt_count for other in others} == {1}
    processes = {line.pid for line in farm.diary()}
    assert worker.stop() == 0
    assert not any(is_running(pid) for pid in processes)
    assert farm.census().drift == 0
