"""Killed workers, outages and shutdowns: no job is lost, none is given to another worker while its own is alive.

The installed program on a real server, and on SQLite where the server makes no difference."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fileq.core.job import State
from tests.support.parallel_scenarios import server_beside, together, under_way
from tests.support.program import Program
from tests.support.waiting import wait_until
from tests.support.worker_setup import REAP_S, TTL_S, Farm, ids, is_running, pass_s

__all__ = ["under_way"]
RECOVERY_S = TTL_S + 2 * TTL_S / 3 + REAP_S  # heartbeat, two renewals, one interval of the reaper


@together("valkey", "redis", "sqlite")
def test_all_jobs_of_a_killed_worker_start_again_in_time(farm: Farm) -> None:
    jobs = farm.enqueue("gated", *ids("job", 16))
    victim = farm.worker(count=16)
    farm.wait_told("start", 16)
    farm.worker(count=16)
    pass_s(TTL_S)  # a reaper's checks count once it has been connected for a heartbeat
    killed_s = time.time()
    victim.process.kill()
    farm.wait_told("start", 32)
    assert max(line.at_s for line in farm.diary("start")[16:]) - killed_s < RECOVERY_S
    assert sorted(farm.told("start")[16:]) == sorted(jobs)
    wait_until(lambda: not any(is_running(line.pid) for line in farm.diary("start")[:16]), 5, "its children are gone")
    farm.open_gate()
    farm.wait_for(State.COMPLETED, jobs)
    assert [(farm.job(job).recoveries, farm.job(job).retries) for job in jobs] == [(1, 0)] * 16
    assert {tuple(a.outcome for a in farm.record(job).attempts) for job in jobs} == {("died", "completed")}
    assert farm.census().drift == 0


@together("valkey")
def test_of_sixteen_jobs_that_die_together_only_the_one_that_kills_its_worker_becomes_dead(farm: Farm) -> None:
    bystanders = ids("bystander", 15)
    farm.enqueue("work", *bystanders[:7], payload=0.02)
    farm.enqueue("kills_worker", "culprit")
    farm.enqueue("work", *bystanders[7:], payload=0.02)
    jobs = [*bystanders, "culprit"]
    deaths = 0

    def have_ended() -> bool:
        return set(farm.states(jobs)) <= {"completed", "dead"}

    while not have_ended() and deaths < 10:
        # An orchestrator starts a worker that ended again.
        worker = farm.worker(wait=False, count=16, worker__backoff__max="3s")
        Path(farm.directory, "victim").write_text(str(worker.process.pid))
        wait_until(lambda w=worker: w.process.poll() is not None or have_ended(), 40)  # type: ignore[misc]
        deaths += worker.process.poll() is not None
    assert farm.states(bystanders) == {"completed": 15}
    culprit = farm.job("culprit")
    assert (farm.record("culprit").state, culprit.recoveries, culprit.retries) == (State.DEAD, 4, 0)
    assert "worker died" in (culprit.error or "")
    assert deaths == 4
    assert farm.census().drift == 0


@together("valkey", "sqlite")
def test_a_job_of_three_heartbeats_runs_once_even_if_it_holds_the_interpreter(farm: Farm) -> None:
    """A second worker would claim it as soon as its lease ran out."""
    farm.worker(count=3)
    jobs = [
        *farm.enqueue("work", "sleeps", payload=3 * TTL_S),
        *farm.enqueue("work_in_thread", "sleeps-in-thread", payload=3 * TTL_S),
        *farm.enqueue("holds_gil", "holds", payload=3 * TTL_S),
    ]
    farm.wait_told("start", 3)
    farm.worker(count=3)
    farm.wait_for(State.COMPLETED, jobs)
    assert sorted(farm.told("start")) == sorted(farm.told("end")) == sorted(jobs)
    assert {(farm.record(job).attempt_count, farm.job(job).recoveries) for job in jobs} == {(1, 0)}


@together("valkey", "redis", "sqlite")
def test_a_worker_that_was_stopped_for_longer_than_its_heartbeat_changes_nothing_when_it_continues(farm: Farm) -> None:
    """Stopped for three heartbeats; a second worker takes over. Two of its jobs end meanwhile, two still run."""
    sleeper = farm.worker(count=4)
    ended = farm.enqueue("gated", "ends-1", "ends-2", payload="gate")
    running = farm.enqueue("gated", "runs-1", "runs-2", payload="other-gate")
    farm.wait_told("start", 4)
    second = farm.worker(count=4)
    farm.freeze(sleeper)
    stopped_s = time.monotonic()
    farm.wait_told("start", 8)
    farm.open_gate("gate")
    farm.wait_told("end", 4)
    farm.wait_for(State.COMPLETED, ended)
    pass_s(max(0.0, stopped_s + 3 * TTL_S - time.monotonic()))
    sleeper.signal(signal.SIGCONT)
    sleeper.wait_for("job.fenced", count=4)
    assert {line["job_id"] for line in sleeper.events("job.fenced")} == {*ended, *running}
    assert sleeper.metric("jobs_fenced_total") == 4
    farm.open_gate("other-gate")
    farm.wait_for(State.COMPLETED, running)
    assert sorted(farm.told("end")) == sorted([*ended, *ended, *running]), "a lost job is stopped before its end"
    census = farm.census()
    assert (census.counters["completed"], census.completed, census.drift) == (4, 4, 0)
    assert {tuple(a.outcome for a in farm.record(job).attempts) for job in [*ended, *running]} == {
        ("died", "completed")
    }
    assert second.stop() == 0
    farm.enqueue("note", "afterwards")
    farm.wait_for(State.COMPLETED, ["afterwards"])  # it continues under new slot ids
    assert sleeper.stop() == 0
    assert farm.broker.workers() == []


# outages

OUTAGE_S = 20.0  # many heartbeats long


@contextlib.contextmanager
def loaded_workers(farm: Farm) -> Iterator[tuple[list[str], list[Program]]]:
    """Two workers with jobs that end during the outage, jobs that run until after it, short jobs, and more that wait.
    At the end all are completed, none has failed, and each has run once."""
    jobs = [
        *farm.enqueue("gated", *ids("ends-meanwhile", 3), payload="meanwhile"),
        *farm.enqueue("gated", *ids("runs-through", 3), payload="afterwards"),
        *farm.enqueue("work", *ids("short", 60), payload=0.2),
    ]
    workers = [farm.worker(count=4), farm.worker(count=4)]
    farm.wait_told("start", 6 + 12)
    yield jobs, workers
    farm.wait_for(State.COMPLETED, jobs)
    assert sorted(farm.told("start")) == sorted(farm.told("end")) == sorted(jobs), "each ran once"
    assert {(farm.job(job).retries, farm.job(job).recoveries) for job in jobs} == {(0, 0)}
    assert {tuple(a.outcome for a in farm.record(job).attempts) for job in jobs} == {("completed",)}
    counters = farm.census().counters
    assert [counters.get(name, 0) for name in ("failed", "recovered", "fenced", "dead", "released")] == [0] * 5
    for worker in workers:
        logged = [line["event"] for line in worker.logs() if line["level"] != "info" or "broker." in line["event"]]
        assert logged == ["broker.opened", "broker.lost", "broker.restored"]
        assert worker.stop() == 0
    assert_nothing_left_behind(farm)


@together("valkey", "redis")
def test_an_outage_of_many_heartbeats_fails_no_job_and_moves_none_to_another_worker(farm: Farm) -> None:
    with server_beside(farm) as (server, farm), loaded_workers(farm) as (jobs, workers):
        server.kill()
        killed_s = time.monotonic()
        for worker in workers:
            worker.wait_for("broker.lost")
        ended = len(farm.told("end"))
        farm.open_gate("meanwhile")
        farm.wait_told("end", ended + 3)
        assert sorted(id for id in farm.told("end") if "meanwhile" in id) == ids("ends-meanwhile", 3)
        waiting = len(jobs) - len(farm.told("start"))
        assert waiting > 20, "enough jobs are left for after the outage"
        for worker in workers:
            assert (worker.get("/healthz")[0], worker.readiness()[0]) == (200, 503)
        pass_s(killed_s + OUTAGE_S - time.monotonic())
        assert len(jobs) - len(farm.told("start")) == waiting
        farm.freeze(workers[1])  # alive, but slow to reconnect: the reaper of the other one must wait for it
        server.start()
        workers[0].wait_for("broker.restored")
        pass_s(2 * TTL_S / 3)
        workers[1].signal(signal.SIGCONT)
        found = [worker.wait_for("broker.restored") for worker in workers]
        assert all(OUTAGE_S - 5 < line["seconds"] < OUTAGE_S + 10 for line in found), "the length of the outage"
        pass_s(RECOVERY_S)  # long enough for a reaper to take a job that is not its own
        assert farm.states(ids("runs-through", 3)) == {"running": 3}
        farm.open_gate("afterwards")


@together("valkey")
def test_a_server_that_hangs_longer_than_a_heartbeat_fails_no_job_and_moves_none_to_another_worker(farm: Farm) -> None:
    """It executes the commands it received meanwhile afterwards, though their clients have closed the connection."""
    with server_beside(farm) as (server, farm), loaded_workers(farm):
        server.pause()
        farm.open_gate("meanwhile")
        pass_s(2 * TTL_S)
        server.resume()
        farm.open_gate("afterwards")


@together("valkey")
def test_a_worker_that_is_stopped_during_an_outage_ends_in_time(farm: Farm) -> None:
    with server_beside(farm) as (server, farm):
        farm.enqueue("stubborn", "job")
        worker = farm.worker(count=1, shutdown_timeout="1s")
        farm.wait_told("start", 1)
        server.kill()
        worker.wait_for("broker.lost")
        signalled_s = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert time.monotonic() - signalled_s < 15, "1 s to finish, 5 s to stop, 3 s to settle, and a margin"
        assert not is_running(farm.diary("start")[0].pid)


# shutdown


@together("valkey", "sqlite")
def test_sigterm_under_load_lets_jobs_finish_and_leaves_nothing_behind(farm: Farm) -> None:
    jobs = farm.enqueue("work", *ids("job", 200), payload=0.5)
    worker = farm.worker(count=8, shutdown_timeout="20s")
    farm.wait_told("end", 8)
    assert worker.stop(20) == 0
    started, ended = farm.told("start"), farm.told("end")
    assert sorted(started) == sorted(ended), "every started job was finished"
    assert len(started) < 200, "no job is claimed after the signal"
    assert_nothing_left_behind(farm)
    assert farm.states(jobs) == {"completed": len(ended), "pending": 200 - len(ended)}
    assert {farm.job(job).retries for job in jobs} == {0}


@together("valkey", "sqlite")
def test_a_second_signal_ends_it_at_once_and_jobs_are_back_in_their_queues(farm: Farm) -> None:
    high = farm.enqueue("stubborn", "high-1", queue="high")
    low = farm.enqueue("stubborn", "low-1", "low-2")
    worker = farm.worker(count=3, shutdown_timeout="60s")
    farm.wait_told("start", 3)
    farm.enqueue("note", "behind-them")
    worker.signal(signal.SIGTERM)
    assert worker.wait_for("worker.drain_started")["running"] == 3
    signalled_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert time.monotonic() - signalled_s < 10, "much sooner than the shutdown timeout"
    assert farm.states([*high, *low]) == {"pending": 3}
    assert farm.census().pending == {"high": 1, "low": 3}
    assert {(farm.job(job).retries, farm.job(job).recoveries) for job in [*high, *low]} == {(0, 0)}
    assert not any(is_running(line.pid) for line in farm.diary("start"))
    assert_nothing_left_behind(farm)
    assert farm.broker.peek("low", 3)[2] == farm.record("behind-them").raw, "they went to the front"


@together("valkey")
def test_a_job_that_does_not_finish_in_time_is_cancelled_then_killed_and_given_back(farm: Farm) -> None:
    jobs = [*farm.enqueue("obedient", "obedient"), *farm.enqueue("stubborn", "stubborn")]
    worker = farm.worker(count=2, shutdown_timeout="1s")
    farm.wait_told("start", 2)
    signalled_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.readiness()[0] == 503, 5, "not ready while it stops")
    farm.wait_told("cancelled", 1)
    assert worker.wait(20) == 0
    assert time.monotonic() - signalled_s > 5, "the stubborn one had five seconds to stop"
    assert farm.states(jobs) == {"pending": 2}
    assert {(farm.job(job).retries, farm.job(job).recoveries) for job in jobs} == {(0, 0)}
    assert {tuple(a.outcome for a in farm.record(job).attempts) for job in jobs} == {("released",)}
    assert_nothing_left_behind(farm)


def assert_nothing_left_behind(farm: Farm) -> None:
    census = farm.census()
    assert (census.running, census.heartbeats, census.drift) == (0, 0, 0)
    assert farm.broker.workers() == []
    assert farm.broker.suspects(sweep=True) == []
    assert [census.counters.get(name, 0) for name in ("failed", "recovered")] == [0, 0]


def test_a_second_worker_on_the_same_machine_has_its_own_slot_ids(farm: Farm) -> None:
    """A container restarts with the same host name and pid; it must not inherit claims."""
    farm.worker(count=1)
    farm.worker(count=1)
    wait_until(lambda: len(farm.broker.workers()) == 2, 10)
    names = {view.slot for view in farm.broker.workers()}
    assert len({name.rpartition("-")[2] for name in names}) == 2, names
    assert all(name.startswith(os.uname().nodename) for name in names)
