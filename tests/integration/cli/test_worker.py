"""Admin commands beside a real worker: cancel a running job, pause a queue, check the balance."""

from __future__ import annotations

from fileq.actions.bulk import BulkActions, JobAction
from fileq.commands.admin import pauses, running_workers
from fileq.commands.admin.fsck.check import fsck
from fileq.commands.admin.fsck.report import Report
from fileq.commands.admin.stats import gather
from fileq.config import Config, config_from
from fileq.core.job import State
from fileq.queries.dead_jobs import list_dead
from fileq.queries.job_filter import JobFilter
from fileq.testing.conformance.harness import nested
from tests.support.bulk_actions import act_on_all
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, WorkerSetup, ids, is_running, let_time_pass

__all__ = ["running_scenarios"]


def config_of(setup: WorkerSetup) -> Config:
    return config_from(nested({**setup.settings, "worker.heartbeat_ttl": f"{TTL_S}s"}))


def checked(setup: WorkerSetup, *, repair: bool = False) -> Report:
    return fsck(setup.broker, config_of(setup), is_repairing=repair)


def cancel_running(setup: WorkerSetup) -> None:
    """Cancels a handler that never returns: its child ends, its slot is free again, and only this job is cancelled."""
    setup.worker(count=2)
    setup.enqueue("stubborn", "endless")
    setup.enqueue("gated", "other")
    setup.wait_logged("start", 2)
    [child] = [line.pid for line in setup.handler_log("start") if line.id == "endless"]
    [result] = BulkActions(setup.broker, config_of(setup)).act_on(JobAction.CANCEL, ["endless"]).results
    assert result.result == "requested"
    setup.wait_for(State.CANCELLED, ["endless"], timeout_s=15)
    wait_until(lambda: not is_running(child), 15)
    assert setup.states(["other"]) == {"running": 1}
    setup.enqueue("note", "next")
    setup.wait_for(State.COMPLETED, ["next"])
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["other"])
    assert [attempt.outcome for attempt in setup.record("endless").attempts] == ["cancelled"]
    assert checked(setup).is_clean


@parallel_scenario("redis")
def test_a_running_job_is_cancelled_in_its_worker_on_redis(setup: WorkerSetup) -> None:
    cancel_running(setup)


@parallel_scenario("sqlite")
def test_a_running_job_is_cancelled_in_its_worker_on_sqlite(setup: WorkerSetup) -> None:
    cancel_running(setup)


def pause_and_resume(setup: WorkerSetup) -> None:
    """A second after the pause nothing is claimed from the queue; running jobs finish; other queues continue."""
    setup.worker(count=2)
    setup.enqueue("gated", "running")
    setup.wait_logged("start", 1)
    assert pauses.set_paused(setup.broker, "low", ["high", "low"], paused=True, by="a test").has_changed
    let_time_pass(1.0)
    waiting = setup.enqueue("note", *ids("low", 5))
    setup.enqueue("note", "high", queue="high")
    setup.wait_for(State.COMPLETED, ["high"])
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["running"])
    let_time_pass(1.0)
    assert setup.states(waiting) == {"pending": 5}
    assert [queue.is_paused for queue in gather(setup.broker).queues] == [False, True]
    pauses.set_paused(setup.broker, "low", ["high", "low"], paused=False, by="a test")
    setup.wait_for(State.COMPLETED, waiting)


@parallel_scenario("redis")
def test_a_paused_queue_is_not_claimed_from_and_running_jobs_finish_on_redis(setup: WorkerSetup) -> None:
    pause_and_resume(setup)


@parallel_scenario("sqlite")
def test_a_paused_queue_is_not_claimed_from_and_running_jobs_finish_on_sqlite(setup: WorkerSetup) -> None:
    pause_and_resume(setup)


def fsck_while_busy(setup: WorkerSetup) -> None:
    """Jobs succeed, fail, are retried, die and kill their children; no fsck reports a problem."""
    setup.worker(count=4, max_retries=1, circuit_breaker__min_samples=1000)
    jobs = [
        *setup.enqueue("work", *ids("work", 150), payload=0.01),
        *setup.enqueue("fails", *ids("fails", 15)),
        *setup.enqueue("fails_twice", *ids("twice", 10)),
        *setup.enqueue("exits", *ids("exits", 2)),
    ]
    reports = [checked(setup), checked(setup, repair=True), checked(setup)]
    setup.wait_ended(jobs, 60)
    reports.append(checked(setup))
    for report in reports:
        assert report.is_clean, report
        assert report.repairs == ()
    stats = gather(setup.broker)
    assert stats.totals["produced"] == len(jobs) == stats.completed + stats.dead


@parallel_scenario("redis")
def test_fsck_beside_a_busy_worker_gives_no_false_alarm_on_redis(setup: WorkerSetup) -> None:
    fsck_while_busy(setup)


@parallel_scenario("sqlite")
def test_fsck_beside_a_busy_worker_gives_no_false_alarm_on_sqlite(setup: WorkerSetup) -> None:
    fsck_while_busy(setup)


@parallel_scenario("redis")
def test_dead_jobs_are_retried_after_the_handler_was_fixed(setup: WorkerSetup) -> None:
    setup.worker(count=2, max_retries=0, circuit_breaker__min_samples=1000)
    jobs = setup.enqueue("fails", *ids("job", 20))
    setup.wait_for(State.DEAD, jobs)
    listed = list_dead(setup.broker, ("high", "low"), JobFilter(error="broken", limit=100))
    assert (listed.total, len(listed.jobs)) == (20, 20)
    setup.open_gate("repaired")
    assert act_on_all(setup.broker, config_of(setup), JobAction.RETRY, JobFilter(error="broken")).count == 20
    setup.wait_for(State.COMPLETED, jobs)
    # A busy worker may release a job that it claimed in advance: nothing ran.
    attempts = [setup.record(job).attempts for job in jobs]
    outcomes = [[attempt.outcome for attempt in each if attempt.outcome != "released"] for each in attempts]
    assert outcomes == [["failed", "completed"]] * 20
    assert running_workers.workers(setup.broker).slots == 2
    assert checked(setup).is_clean
