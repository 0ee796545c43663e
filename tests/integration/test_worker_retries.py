"""Jobs whose attempts fail, and the circuit breaker of a worker most of whose jobs fail. The installed program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fileq.core.job import State, rfc3339
from tests.support.worker_setup import Farm, ids


def test_failed_attempts_are_counted_recorded_and_retried_as_the_error_says(each_farm: Farm) -> None:
    farm = each_farm
    farm.enqueue("fails_twice", "twice", queue="high")
    farm.enqueue("later", "later", payload=1.5)
    farm.enqueue("permanent", "permanent")
    farm.enqueue("loops", "loops", max_retries=1, timeout=0.3)
    farm.enqueue("fails", "fails", max_retries=2)
    jobs = ["twice", "later", "permanent", "loops", "fails"]
    farm.worker(count=5)
    assert farm.wait_ended(jobs) == {"completed": 2, "dead": 3}
    assert {job: farm.job(job).retries for job in jobs} == {
        "twice": 2,
        "later": 1,
        "permanent": 1,
        "loops": 2,
        "fails": 3,
    }
    assert {farm.job(job).recoveries for job in jobs} == {0}
    twice = farm.record("twice")
    assert [attempt.outcome for attempt in twice.attempts] == ["failed", "failed", "completed"]
    assert "ValueError: not yet" in twice.attempts[0].error
    assert twice.queue == "high", "it went back to its own queue"
    first, second = (line.at_s for line in farm.diary("start") if line.id == "later")
    assert second - first >= 1.5, "the handler chose the delay"
    starts = farm.told("start")
    assert {job: starts.count(job) for job in jobs} == {"twice": 3, "later": 2, "permanent": 1, "loops": 2, "fails": 3}
    assert "Permanent: never" in (farm.job("permanent").error or "")
    assert farm.job("loops").error == "timed out after 300ms"
    assert farm.job("fails").failed_at is not None
    census = farm.census()
    assert (census.counters["failed"], census.counters["retried"], census.drift) == (9, 6, 0)


def test_a_job_that_waits_for_its_next_attempt_holds_no_slot(farm: Farm) -> None:
    farm.worker(count=1)
    farm.enqueue("later", "waits", payload=60)
    farm.wait_for(State.RETRYING, ["waits"])
    farm.enqueue("note", "other")
    farm.wait_for(State.COMPLETED, ["other"])
    assert farm.census().scheduled == 1


def test_a_job_past_its_deadline_is_dead_and_not_run(farm: Farm) -> None:
    past, future = (rfc3339(datetime.now(UTC) + timedelta(hours=hours)) for hours in (-1, 1))
    farm.enqueue("note", "late", deadline=past)
    farm.enqueue("note", "in-time", deadline=future)
    farm.worker(count=2)
    assert farm.wait_ended(["late", "in-time"]) == {"dead": 1, "completed": 1}
    late = farm.job("late")
    assert (late.error, late.retries) == ("deadline passed", 0)
    assert late.failed_at is not None
    assert farm.census().counters.get("failed", 0) == 0, "nothing ran, so nothing failed"
    assert farm.told("note") == ["in-time"]


def test_a_failing_handler_stops_claims_until_a_probe_succeeds(farm: Farm) -> None:
    jobs = farm.enqueue("fails", *ids("job", 30))
    worker = farm.worker(
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
    assert len(farm.told("start")) == 6, "five to open it, and one probe"
    assert {view.info.breaker for view in farm.broker.workers()} == {"open"}
    (farm.directory / "mended").touch()
    assert farm.wait_ended(jobs) == {"dead": 6, "completed": 24}
    assert worker.events("breaker.closed")
    assert {view.info.breaker for view in farm.broker.workers()} == {"closed"}
