"""Admin commands beside a real worker: cancel a running job, pause a queue, check the balance."""

from __future__ import annotations

from fileq.commands.admin import control, dlq
from fileq.commands.admin.fsck import Report, fsck
from fileq.commands.admin.stats import gather
from fileq.config import Config, config_from
from fileq.core.job import State
from tests.conformance.harness import nested
from tests.support.parallel_scenarios import together, under_way
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, Farm, ids, is_running, pass_s

__all__ = ["under_way"]


def config_of(farm: Farm) -> Config:
    return config_from(nested({**farm.settings, "worker.heartbeat_ttl": f"{TTL_S}s"}))


def checked(farm: Farm, *, repair: bool = False) -> Report:
    return fsck(farm.broker, config_of(farm), is_repairing=repair)


def cancel_running(farm: Farm) -> None:
    """Cancels a handler that never returns: its child ends, its slot is free again, and only this job is cancelled."""
    farm.worker(count=2)
    farm.enqueue("stubborn", "endless")
    farm.enqueue("gated", "other")
    farm.wait_told("start", 2)
    [child] = [line.pid for line in farm.diary("start") if line.id == "endless"]
    [result] = control.cancel(farm.broker, ["endless"], TTL_S).results
    assert result.result == "requested"
    farm.wait_for(State.CANCELLED, ["endless"], timeout_s=15)
    wait_until(lambda: not is_running(child), 15)
    assert farm.states(["other"]) == {"running": 1}
    farm.enqueue("note", "next")
    farm.wait_for(State.COMPLETED, ["next"])
    farm.open_gate()
    farm.wait_for(State.COMPLETED, ["other"])
    assert [attempt.outcome for attempt in farm.record("endless").attempts] == ["cancelled"]
    assert checked(farm).is_clean


@together("redis")
def test_a_running_job_is_cancelled_in_its_worker_on_redis(farm: Farm) -> None:
    cancel_running(farm)


@together("sqlite")
def test_a_running_job_is_cancelled_in_its_worker_on_sqlite(farm: Farm) -> None:
    cancel_running(farm)


def pause_and_resume(farm: Farm) -> None:
    """A second after the pause nothing is claimed from the queue; running jobs finish; other queues continue."""
    farm.worker(count=2)
    farm.enqueue("gated", "running")
    farm.wait_told("start", 1)
    assert control.set_paused(farm.broker, "low", ["high", "low"], paused=True).has_changed
    pass_s(1.0)
    waiting = farm.enqueue("note", *ids("low", 5))
    farm.enqueue("note", "high", queue="high")
    farm.wait_for(State.COMPLETED, ["high"])
    farm.open_gate()
    farm.wait_for(State.COMPLETED, ["running"])
    pass_s(1.0)
    assert farm.states(waiting) == {"pending": 5}
    assert [queue.is_paused for queue in gather(farm.broker).queues] == [False, True]
    control.set_paused(farm.broker, "low", ["high", "low"], paused=False)
    farm.wait_for(State.COMPLETED, waiting)


@together("redis")
def test_a_paused_queue_is_not_claimed_from_and_running_jobs_finish_on_redis(farm: Farm) -> None:
    pause_and_resume(farm)


@together("sqlite")
def test_a_paused_queue_is_not_claimed_from_and_running_jobs_finish_on_sqlite(farm: Farm) -> None:
    pause_and_resume(farm)


def fsck_while_busy(farm: Farm) -> None:
    """Jobs succeed, fail, are retried, die and kill their children; no fsck reports a problem."""
    farm.worker(count=4, max_retries=1, circuit_breaker__min_samples=1000)
    jobs = [
        *farm.enqueue("work", *ids("work", 150), payload=0.01),
        *farm.enqueue("fails", *ids("fails", 15)),
        *farm.enqueue("fails_twice", *ids("twice", 10)),
        *farm.enqueue("exits", *ids("exits", 2)),
    ]
    reports = [checked(farm), checked(farm, repair=True), checked(farm)]
    farm.wait_ended(jobs, 60)
    reports.append(checked(farm))
    for report in reports:
        assert report.is_clean, report
        assert report.repairs == ()
    stats = gather(farm.broker)
    assert stats.totals["produced"] == len(jobs) == stats.completed + stats.dead


@together("redis")
def test_fsck_beside_a_busy_worker_gives_no_false_alarm_on_redis(farm: Farm) -> None:
    fsck_while_busy(farm)


@together("sqlite")
def test_fsck_beside_a_busy_worker_gives_no_false_alarm_on_sqlite(farm: Farm) -> None:
    fsck_while_busy(farm)


@together("redis")
def test_dead_jobs_are_retried_after_the_handler_was_fixed(farm: Farm) -> None:
    farm.worker(count=2, max_retries=0, circuit_breaker__min_samples=1000)
    jobs = farm.enqueue("fails", *ids("job", 20))
    farm.wait_for(State.DEAD, jobs)
    listed = dlq.list_dead(farm.broker, 100, error="broken")
    assert (listed.total, len(listed.jobs)) == (20, 20)
    farm.open_gate("mended")
    assert dlq.retry_all(farm.broker, queue="low", error="broken").count == 20
    farm.wait_for(State.COMPLETED, jobs)
    assert [farm.record(job).attempt_count for job in jobs] == [2] * 20
    assert control.workers(farm.broker).slots == 2
    assert checked(farm).is_clean
