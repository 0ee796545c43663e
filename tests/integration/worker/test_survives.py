"""Killed workers, outages and shutdowns: no job is lost, none is given to another worker while its own is alive.

The installed program on a real server, and on SQLite where the server makes no difference."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fileq.core.job import State
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios, setup_with_own_server
from tests.support.program import Program, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import REAP_S, TTL_S, WorkerSetup, ids, is_running, let_time_pass

__all__ = ["running_scenarios"]
RECOVERY_S = TTL_S + 2 * TTL_S / 3 + REAP_S  # heartbeat, two renewals, one interval of the reaper


@parallel_scenario("valkey", "redis", "sqlite")
def test_all_jobs_of_a_killed_worker_start_again_in_time(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("gated", *ids("job", 16))
    victim = setup.worker(count=16)
    setup.wait_logged("start", 16)
    setup.worker(count=16)
    let_time_pass(TTL_S)  # a reaper's checks count once it has been connected for a heartbeat
    killed_s = time.time()
    victim.process.kill()
    setup.wait_logged("start", 32)
    assert max(line.at_s for line in setup.handler_log("start")[16:]) - killed_s < RECOVERY_S
    assert sorted(setup.logged("start")[16:]) == sorted(jobs)
    wait_until(
        lambda: not any(is_running(line.pid) for line in setup.handler_log("start")[:16]), 5, "its children are gone"
    )
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    assert [(setup.job(job).recoveries, setup.job(job).retries) for job in jobs] == [(1, 0)] * 16
    assert {tuple(a.outcome for a in setup.record(job).attempts) for job in jobs} == {("died", "completed")}
    shown = run("show", jobs[0], cwd=setup.directory, settings=setup.settings).stdout
    assert re.search(r"died \(detected [\d.]+s after it started\)", shown), "the time of the death is not known"
    assert "its worker died (its process is gone)" in shown
    assert setup.census().drift == 0


@parallel_scenario("valkey", "sqlite")
def test_the_jobs_of_a_killed_worker_are_given_back_by_a_neighbour_that_runs_already(setup: WorkerSetup) -> None:
    """Long before the heartbeat could run out."""
    jobs = setup.enqueue("gated", *ids("job", 4))
    victim = setup.worker(count=4, heartbeat_ttl="10m")
    setup.wait_logged("start", 4)
    neighbour = setup.worker(count=4, heartbeat_ttl="10m")
    victim.process.kill()
    setup.wait_logged("start", 8)
    assert sorted(setup.logged("start")[4:]) == sorted(jobs)
    neighbour.wait_for("job.recovered", count=4)
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    assert {(setup.job(job).recoveries, setup.record(job).attempt_count) for job in jobs} == {(1, 2)}
    assert setup.census().drift == 0


@parallel_scenario("valkey", "sqlite")
def test_a_worker_that_starts_after_a_kill_gives_back_the_jobs_at_once(setup: WorkerSetup) -> None:
    """As systemd does: no other worker runs, and checks of heartbeats would count only after ten minutes."""
    jobs = setup.enqueue("gated", *ids("job", 4))
    victim = setup.worker(count=4, heartbeat_ttl="10m")
    setup.wait_logged("start", 4)
    victim.process.kill()
    victim.process.wait()
    setup.worker(count=4, heartbeat_ttl="10m")
    setup.wait_logged("start", 8)
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    assert {(setup.job(job).recoveries, setup.record(job).attempt_count) for job in jobs} == {(1, 2)}
    [lost] = json.loads(run("workers", "--json", cwd=setup.directory, settings=setup.settings).stdout)["lost"]
    assert (lost["pid"], lost["jobs"]) == (victim.process.pid, 4)
    assert setup.census().drift == 0


@parallel_scenario("valkey")
def test_of_sixteen_jobs_that_die_together_only_the_one_that_kills_its_worker_becomes_dead(setup: WorkerSetup) -> None:
    bystanders = ids("bystander", 15)
    setup.enqueue("work", *bystanders[:7], payload=0.02)
    setup.enqueue("kills_worker", "culprit")
    setup.enqueue("work", *bystanders[7:], payload=0.02)
    jobs = [*bystanders, "culprit"]
    deaths = 0

    def have_ended() -> bool:
        return set(setup.states(jobs)) <= {"completed", "dead"}

    while not have_ended() and deaths < 10:
        # An orchestrator starts a worker that ended again.
        worker = setup.worker(wait=False, count=16, worker__backoff__max="3s")
        Path(setup.directory, "victim").write_text(str(worker.process.pid))
        wait_until(lambda w=worker: w.process.poll() is not None or have_ended(), 40)  # type: ignore[misc]
        deaths += worker.process.poll() is not None
    assert setup.states(bystanders) == {"completed": 15}
    culprit = setup.job("culprit")
    assert (setup.record("culprit").state, culprit.recoveries, culprit.retries) == (State.DEAD, 4, 0)
    assert "worker died" in (culprit.error or "")
    assert deaths == 4
    assert setup.census().drift == 0


@parallel_scenario("valkey", "sqlite")
def test_a_job_of_three_heartbeats_runs_once_even_if_it_holds_the_interpreter(setup: WorkerSetup) -> None:
    """A second worker would claim it as soon as its lease ran out."""
    setup.worker(count=3)
    jobs = [
        *setup.enqueue("work", "sleeps", payload=3 * TTL_S),
        *setup.enqueue("work_in_thread", "sleeps-in-thread", payload=3 * TTL_S),
        *setup.enqueue("holds_gil", "holds", payload=3 * TTL_S),
    ]
    setup.wait_logged("start", 3)
    setup.worker(count=3)
    setup.wait_for(State.COMPLETED, jobs)
    assert sorted(setup.logged("start")) == sorted(setup.logged("end")) == sorted(jobs)
    assert {(setup.record(job).attempt_count, setup.job(job).recoveries) for job in jobs} == {(1, 0)}


@parallel_scenario("valkey", "redis", "sqlite")
def test_a_worker_that_was_stopped_for_longer_than_its_heartbeat_changes_nothing_when_it_continues(
    setup: WorkerSetup,
) -> None:
    """Stopped for three heartbeats; a second worker takes over. Two of its jobs end meanwhile, two still run."""
    sleeper = setup.worker(count=4)
    ended = setup.enqueue("gated", "ends-1", "ends-2", payload="gate")
    running = setup.enqueue("gated", "runs-1", "runs-2", payload="other-gate")
    setup.wait_logged("start", 4)
    second = setup.worker(count=4)
    setup.freeze(sleeper)
    stopped_s = time.monotonic()
    setup.wait_logged("start", 8)
    setup.open_gate("gate")
    setup.wait_logged("end", 4)
    setup.wait_for(State.COMPLETED, ended)
    let_time_pass(max(0.0, stopped_s + 3 * TTL_S - time.monotonic()))
    sleeper.signal(signal.SIGCONT)
    sleeper.wait_for("job.fenced", count=4)
    assert {line["job_id"] for line in sleeper.events("job.fenced")} == {*ended, *running}
    assert sleeper.metric("jobs_fenced_total") == 4
    setup.open_gate("other-gate")
    setup.wait_for(State.COMPLETED, running)
    assert sorted(setup.logged("end")) == sorted([*ended, *ended, *running]), "a lost job is stopped before its end"
    census = setup.census()
    assert (census.counters["completed"], census.completed, census.drift) == (4, 4, 0)
    assert {tuple(a.outcome for a in setup.record(job).attempts) for job in [*ended, *running]} == {
        ("died", "completed")
    }
    assert second.stop() == 0
    setup.enqueue("note", "afterwards")
    setup.wait_for(State.COMPLETED, ["afterwards"])  # it continues under new slot ids
    assert sleeper.stop() == 0
    assert setup.broker.workers() == []


# outages

OUTAGE_S = 20.0  # many heartbeats long


@contextlib.contextmanager
def loaded_workers(setup: WorkerSetup) -> Iterator[tuple[list[str], list[Program]]]:
    """Two workers with jobs that end during the outage, jobs that run until after it, short jobs, and more that wait.
    At the end all are completed, none has failed, and each has run once."""
    jobs = [
        *setup.enqueue("gated", *ids("ends-meanwhile", 3), payload="meanwhile"),
        *setup.enqueue("gated", *ids("runs-through", 3), payload="afterwards"),
        *setup.enqueue("work", *ids("short", 60), payload=0.2),
    ]
    workers = [setup.worker(count=4), setup.worker(count=4)]
    setup.wait_logged("start", 6 + 12)
    yield jobs, workers
    setup.wait_for(State.COMPLETED, jobs)
    assert sorted(setup.logged("start")) == sorted(setup.logged("end")) == sorted(jobs), "each ran once"
    assert {(setup.job(job).retries, setup.job(job).recoveries) for job in jobs} == {(0, 0)}
    assert {tuple(a.outcome for a in setup.record(job).attempts) for job in jobs} == {("completed",)}
    counters = setup.census().counters
    assert [counters.get(name, 0) for name in ("failed", "recovered", "fenced", "dead", "released")] == [0] * 5
    for worker in workers:
        logged = [line["event"] for line in worker.logs() if line["level"] != "info" or "broker." in line["event"]]
        assert logged == ["broker.opened", "broker.lost", "broker.restored"]
        assert worker.stop() == 0
    assert_nothing_left_behind(setup)


@parallel_scenario("valkey", "redis")
def test_an_outage_of_many_heartbeats_fails_no_job_and_moves_none_to_another_worker(setup: WorkerSetup) -> None:
    with setup_with_own_server(setup) as (server, setup), loaded_workers(setup) as (jobs, workers):
        server.kill()
        killed_s = time.monotonic()
        for worker in workers:
            worker.wait_for("broker.lost")
        ended = len(setup.logged("end"))
        setup.open_gate("meanwhile")
        setup.wait_logged("end", ended + 3)
        assert sorted(id for id in setup.logged("end") if "meanwhile" in id) == ids("ends-meanwhile", 3)
        waiting = len(jobs) - len(setup.logged("start"))
        assert waiting > 20, "enough jobs are left for after the outage"
        for worker in workers:
            assert (worker.get("/healthz")[0], worker.readiness()[0]) == (200, 503)
        let_time_pass(killed_s + OUTAGE_S - time.monotonic())
        assert len(jobs) - len(setup.logged("start")) == waiting
        setup.freeze(workers[1])  # alive, but slow to reconnect: the reaper of the other one must wait for it
        server.start()
        workers[0].wait_for("broker.restored")
        let_time_pass(2 * TTL_S / 3)
        workers[1].signal(signal.SIGCONT)
        found = [worker.wait_for("broker.restored") for worker in workers]
        assert all(OUTAGE_S - 5 < line["seconds"] < OUTAGE_S + 10 for line in found), "the length of the outage"
        let_time_pass(RECOVERY_S)  # long enough for a reaper to take a job that is not its own
        assert setup.states(ids("runs-through", 3)) == {"running": 3}
        setup.open_gate("afterwards")


@parallel_scenario("valkey")
def test_a_server_that_hangs_longer_than_a_heartbeat_fails_no_job_and_moves_none_to_another_worker(
    setup: WorkerSetup,
) -> None:
    """It executes the commands it received meanwhile afterwards, though their clients have closed the connection."""
    with setup_with_own_server(setup) as (server, setup), loaded_workers(setup):
        server.pause()
        setup.open_gate("meanwhile")
        let_time_pass(2 * TTL_S)
        server.resume()
        setup.open_gate("afterwards")


@parallel_scenario("valkey")
def test_a_worker_that_is_stopped_during_an_outage_ends_in_time(setup: WorkerSetup) -> None:
    with setup_with_own_server(setup) as (server, setup):
        setup.enqueue("stubborn", "job")
        worker = setup.worker(count=1, shutdown_timeout="1s")
        setup.wait_logged("start", 1)
        server.kill()
        worker.wait_for("broker.lost")
        signalled_s = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert time.monotonic() - signalled_s < 15, "1 s to finish, 5 s to stop, 3 s to settle, and a margin"
        assert not is_running(setup.handler_log("start")[0].pid)


@parallel_scenario("valkey")
def test_a_worker_without_a_job_does_not_wait_for_a_server_that_hangs(setup: WorkerSetup) -> None:
    with setup_with_own_server(setup) as (server, setup):
        worker = setup.worker(count=2, shutdown_timeout="1h")
        setup.wait_for(State.COMPLETED, setup.enqueue("note", "job"))
        server.pause()
        worker.signal(signal.SIGTERM)
        assert worker.wait(30) == 0


# shutdown


@parallel_scenario("valkey", "sqlite")
def test_sigterm_under_load_lets_jobs_finish_and_leaves_nothing_behind(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("work", *ids("job", 200), payload=0.5)
    worker = setup.worker(count=8, shutdown_timeout="20s")
    setup.wait_logged("end", 8)
    assert worker.stop(20) == 0
    started, ended = setup.logged("start"), setup.logged("end")
    assert sorted(started) == sorted(ended), "every started job was finished"
    assert len(started) < 200, "no job is claimed after the signal"
    assert_nothing_left_behind(setup)
    assert setup.states(jobs) == {"completed": len(ended), "pending": 200 - len(ended)}
    assert {setup.job(job).retries for job in jobs} == {0}


@parallel_scenario("valkey", "sqlite")
def test_a_second_signal_ends_it_at_once_and_jobs_are_back_in_their_queues(setup: WorkerSetup) -> None:
    high = setup.enqueue("stubborn", "high-1", queue="high")
    low = setup.enqueue("stubborn", "low-1", "low-2")
    worker = setup.worker(count=3, shutdown_timeout="60s")
    setup.wait_logged("start", 3)
    setup.enqueue("note", "behind-them")
    worker.signal(signal.SIGTERM)
    assert worker.wait_for("worker.drain_started")["running"] == 3
    signalled_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert time.monotonic() - signalled_s < 10, "much sooner than the shutdown timeout"
    assert setup.states([*high, *low]) == {"pending": 3}
    assert setup.census().pending == {"high": 1, "low": 3}
    assert {(setup.job(job).retries, setup.job(job).recoveries) for job in [*high, *low]} == {(0, 0)}
    assert not any(is_running(line.pid) for line in setup.handler_log("start"))
    assert_nothing_left_behind(setup)
    assert setup.broker.peek("low", 3)[2] == setup.record("behind-them").raw, "they went to the front"


@parallel_scenario("valkey")
def test_a_job_that_does_not_finish_in_time_is_cancelled_then_killed_and_given_back(setup: WorkerSetup) -> None:
    jobs = [*setup.enqueue("obedient", "obedient"), *setup.enqueue("stubborn", "stubborn")]
    worker = setup.worker(count=2, shutdown_timeout="1s")
    setup.wait_logged("start", 2)
    signalled_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.readiness()[0] == 503, 5, "not ready while it stops")
    setup.wait_logged("cancelled", 1)
    assert worker.wait(20) == 0
    assert time.monotonic() - signalled_s > 5, "the stubborn one had five seconds to stop"
    assert setup.states(jobs) == {"pending": 2}
    assert {(setup.job(job).retries, setup.job(job).recoveries) for job in jobs} == {(0, 0)}
    assert {tuple(a.outcome for a in setup.record(job).attempts) for job in jobs} == {("released",)}
    assert_nothing_left_behind(setup)


@parallel_scenario("valkey", "sqlite")
def test_an_error_that_a_handler_raises_while_the_worker_stops_is_logged_and_not_counted(setup: WorkerSetup) -> None:
    in_child, in_thread = (setup.enqueue(type, type)[0] for type in ("obedient", "obedient_in_thread"))
    worker = setup.worker(count=2, shutdown_timeout="1s")
    setup.wait_logged("start", 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    logged = worker.events("handler.error_ignored")
    assert {(one["job_id"], one["outcome"], one["level"]) for one in logged} == {
        (in_child, "released", "warning"),
        (in_thread, "released", "warning"),
    }
    for one in logged:
        assert one["error"].startswith("RuntimeError: stopped on request")
        assert 'raise RuntimeError("stopped on request")' in one["exception"]
    assert not worker.events("job.failed")
    assert_nothing_left_behind(setup)


def assert_nothing_left_behind(setup: WorkerSetup) -> None:
    census = setup.census()
    assert (census.running, census.heartbeats, census.drift) == (0, 0, 0)
    assert setup.broker.workers() == []
    assert setup.broker.suspects(sweep=True) == []
    assert [census.counters.get(name, 0) for name in ("failed", "recovered")] == [0, 0]


def test_a_second_worker_on_the_same_machine_has_its_own_slot_ids(setup: WorkerSetup) -> None:
    """A container restarts with the same host name and pid; it must not inherit claims."""
    setup.worker(count=1)
    setup.worker(count=1)
    wait_until(lambda: len(setup.broker.workers()) == 2, 10)
    names = {view.slot for view in setup.broker.workers()}
    assert len({name.rpartition("-")[2] for name in names}) == 2, names
    assert all(name.startswith(os.uname().nodename) for name in names)
