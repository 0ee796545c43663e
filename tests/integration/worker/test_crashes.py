"""A handler that crashes its process harms its own job only. The installed program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fileq.core.job import State
from tests.support import program
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, is_running


def test_the_job_of_a_killed_child_runs_again_at_once(setup: WorkerSetup) -> None:
    """Long before any heartbeat could have run out."""
    setup.worker(count=2, heartbeat_ttl="60s", reap_interval="60s")
    jobs = setup.enqueue("gated", "hit", "bystander")
    setup.wait_logged("start", 2)
    [child] = [line.pid for line in setup.handler_log("start") if line.id == "hit"]
    os.kill(child, signal.SIGKILL)
    assert setup.wait_logged("start", 3)[2] == "hit"
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    died = setup.record("hit").attempts[0]
    assert died.outcome == "died"
    assert "SIGKILL" in died.error
    assert (setup.job("hit").recoveries, setup.job("hit").retries) == (1, 0)
    assert setup.record("bystander").attempt_count == 1


def test_a_frozen_fork_server_is_replaced_and_the_job_of_its_child_runs_again(setup: WorkerSetup) -> None:
    setup.worker(count=2, heartbeat_ttl="60s", reap_interval="60s")
    jobs = setup.enqueue("gated", "hit")
    setup.wait_logged("start", 1)
    [child] = [line.pid for line in setup.handler_log("start")]
    server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)
    setup.wait_logged("start", 2, timeout_s=60)
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    assert setup.record("hit").attempts[0].error == "crashed: the fork server did not answer for 10s"


def test_a_crash_is_called_a_crash_by_the_log_and_by_show(each_setup: WorkerSetup) -> None:
    setup = each_setup
    worker = setup.worker(count=1, max_recoveries=1)
    setup.enqueue("exits", "culprit")
    setup.wait_for(State.DEAD, ["culprit"])
    crashed = "crashed: the handler process exited with status 7"
    assert worker.wait_for("job.recovered")["error"] == worker.wait_for("job.dead")["error"] == crashed
    shown = program.run("show", "culprit", cwd=setup.directory, settings=setup.all_settings()).stdout
    lines = shown.splitlines()
    assert "deaths   2, more than worker.max_recoveries allows" in lines
    assert lines[lines.index(f"  {crashed}") + 1].startswith("  (by os._exit() or a native library; ")
    assert "recoveries" not in shown.replace("max_recoveries", "")


def test_a_job_that_always_kills_its_child_is_dead_after_max_recoveries(setup: WorkerSetup) -> None:
    setup.worker(count=2, max_recoveries=2)
    setup.enqueue("segfaults", "culprit")
    setup.wait_for(State.DEAD, ["culprit"])
    assert len(setup.logged("start")) == 3
    dead = setup.job("culprit")
    assert "SIGSEGV" in (dead.error or "")
    assert (dead.retries, dead.recoveries) == (0, 3)
    assert {attempt.outcome for attempt in setup.record("culprit").attempts} == {"died"}
    counters = setup.census().counters
    assert [counters.get(name, 0) for name in ("error:Crash", "recovered", "failed")] == [3, 3, 0]
    listed = program.run(
        "dlq", "list", "--error", "Crash", "--json", cwd=setup.directory, settings=setup.all_settings()
    )
    assert '"culprit"' in listed.stdout


def test_a_handler_that_crashes_hangs_or_leaks_harms_its_own_job_only(each_setup: WorkerSetup) -> None:
    setup = each_setup
    worker = setup.worker(count=16, max_recoveries=0, max_retries=0, max_memory="200MB")
    # One slot is left for the jobs that go wrong, one after the other: each of them has to free it.
    others = setup.enqueue("gated", *ids("other", 15))
    setup.wait_logged("start", 15)
    wrong = {
        "segfaults": "SIGSEGV",
        "exits": "7",
        "loops": "timed out after 1s",
        "eats": "memory",
        "unpicklable": "Local: a local class",
    }
    for type in (*wrong, "leaves", "not_json"):
        setup.enqueue(type, type)
    assert setup.wait_ended([*wrong, "leaves", "not_json"]) == {"dead": 5, "completed": 2}
    for type, words in wrong.items():
        assert words in (setup.job(type).error or ""), type
    # Deaths count recoveries; exceptions, timeouts and memory count retries.
    counted = {type: (setup.job(type).recoveries, setup.job(type).retries) for type in wrong}
    assert counted == {
        "segfaults": (1, 0),
        "exits": (1, 0),
        "loops": (0, 1),
        "eats": (0, 1),
        "unpicklable": (0, 1),
    }
    assert setup.record("not_json").result == b""
    assert worker.wait_for("job.result_dropped")["job_id"] == "not_json"
    assert len(setup.handler_log("left")) == 2
    wait_until(lambda: not any(is_running(line.pid) for line in setup.handler_log("left")), 5, "grandchildren are gone")
    assert setup.states(others) == {"running": 15}
    setup.open_gate()
    setup.wait_for(State.COMPLETED, others)
    assert sorted(setup.logged("start")[:15]) == sorted(others)
    assert {setup.record(other).attempt_count for other in others} == {1}
    processes = {line.pid for line in setup.handler_log()}
    assert worker.stop() == 0
    assert not any(is_running(pid) for pid in processes)
    assert setup.census().drift == 0
