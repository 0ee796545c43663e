"""Jobs whose attempts fail, and the circuit breaker of a worker most of whose jobs fail. The installed program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fileq.core.job import State, rfc3339
from tests.support.worker_setup import WorkerSetup, ids


def test_failed_attempts_are_counted_recorded_and_retried_as_the_error_says(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.enqueue("fails_twice", "twice", queue="high")
    setup.enqueue("later", "later", payload=1.5)
    setup.enqueue("permanent", "permanent")
    setup.enqueue("loops", "loops", max_retries=1, timeout=0.3)
    setup.enqueue("fails", "fails", max_retries=2)
    jobs = ["twice", "later", "permanent", "loops", "fails"]
    setup.worker(count=5)
    assert setup.wait_ended(jobs) == {"completed": 2, "dead": 3}
    assert {job: setup.job(job).retries for job in jobs} == {
        "twice": 2,
        "later": 1,
        "permanent": 1,
        "loops": 2,
        "fails": 3,
    }
    assert {setup.job(job).recoveries for job in jobs} == {0}
    twice = setup.record("twice")
    assert [attempt.outcome for attempt in twice.attempts] == ["failed", "failed", "completed"]
    assert "ValueError: not yet" in twice.attempts[0].error
    assert twice.queue == "high", "it went back to its own queue"
    first, second = (line.at_s for line in setup.handler_log("start") if line.id == "later")
    assert second - first >= 1.5, "the handler chose the delay"
    starts = setup.logged("start")
    assert {job: starts.count(job) for job in jobs} == {"twice": 3, "later": 2, "permanent": 1, "loops": 2, "fails": 3}
    assert "Permanent: never" in (setup.job("permanent").error or "")
    assert setup.job("loops").error == "timed out after 300ms"
    assert setup.job("fails").failed_at is not None
    census = setup.census()
    assert (census.counters["failed"], census.counters["retried"], census.drift) == (9, 6, 0)


def test_a_job_that_waits_for_its_next_attempt_holds_no_slot(setup: WorkerSetup) -> None:
    setup.worker(count=1)
    setup.enqueue("later", "waits", payload=60)
    setup.wait_for(State.RETRYING, ["waits"])
    setup.enqueue("note", "other")
    setup.wait_for(State.COMPLETED, ["other"])
    assert setup.census().scheduled == 1


def test_a_job_past_its_deadline_is_dead_and_not_run(setup: WorkerSetup) -> None:
    past, future = (rfc3339(datetime.now(UTC) + timedelta(hours=hours)) for hours in (-1, 1))
    setup.enqueue("note", "late", deadline=past)
    setup.enqueue("note", "in-time", deadline=future)
    setup.worker(count=2)
    assert setup.wait_ended(["late", "in-time"]) == {"dead": 1, "completed": 1}
    late = setup.job("late")
    assert (late.error, late.retries) == ("deadline passed", 0)
    assert late.failed_at is not None
    assert setup.census().counters.get("failed", 0) == 0, "nothing ran, so nothing failed"
    assert setup.logged("note") == ["in-time"]


def test_a_failing_handler_stops_claims_until_a_probe_succeeds(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("fails", *ids("job", 30))
    worker = setup.worker(
        count=1,
        max_retries=0,
        circuit_breaker__min_samples=5,
        circuit_breaker__window="1m",
        circuit_breaker__cooldown_period="1500ms",
    )
    worker.wait_for("breaker.opened")
    assert worker.readiness()[0] == 200, "an open breaker does not make the worker unready"
    worker.wait_for("breaker.half_opened")
    worker.wait_for("breaker.opened", count=2)  # the probe failed too
    assert len(setup.logged("start")) == 6, "five to open it, and one probe"
    assert {view.info.breaker for view in setup.broker.workers()} == {"open"}
    (setup.directory / "repaired").touch()
    assert setup.wait_ended(jobs) == {"dead": 6, "completed": 24}
    assert worker.events("breaker.closed")
    assert {view.info.breaker for view in setup.broker.workers()} == {"closed"}
