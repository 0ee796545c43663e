"""@fileq.before_enqueue: functions that see each job before a producer or a client enqueues it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fileq
from fileq.config import config_from
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import Job, typed_job
from fileq.handlers import extensions
from fileq.handlers.extensions import Extensions, apply_before_enqueue, load_before_enqueue
from fileq.handlers.routes import Routes

JOB = typed_job("t", None, priority="low", now=datetime(2026, 11, 16, tzinfo=UTC), id="a")


@pytest.fixture(autouse=True)
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "EXTENSIONS", Extensions())


def test_without_functions_a_job_is_enqueued_as_it_is() -> None:
    assert apply_before_enqueue(JOB) is JOB
    assert load_before_enqueue(config_from({}), app_dir="") is None


def test_each_function_sees_what_the_one_before_it_returned() -> None:
    @fileq.before_enqueue
    def urgent(job: Job) -> Job:
        return job.but(priority="high")

    @fileq.before_enqueue
    def patient(job: Job) -> Job:
        return job.but(max_retries=9 if job.priority == "high" else 0)

    changed = apply_before_enqueue(JOB)
    assert changed == JOB.but(priority="high", max_retries=9)
    assert load_before_enqueue(config_from({}), app_dir="") is apply_before_enqueue


def test_a_function_may_change_what_limits_a_job() -> None:
    changes: dict[str, Any] = {"timeout": 5, "deadline": "2026-12-01T00:00:00Z", "max_retries": 0}
    fileq.before_enqueue(lambda job: job.but(**changes))
    assert apply_before_enqueue(JOB) == JOB.but(**changes)


def test_none_is_a_veto_and_the_functions_after_it_are_not_called() -> None:
    fileq.before_enqueue(lambda job: None)

    @fileq.before_enqueue
    def never(job: Job) -> Job:
        raise AssertionError

    assert apply_before_enqueue(JOB) is None


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (True, "returned True; it must return the job"),
        (JOB.but(id="b", retries=1), "changed id, retries of job a"),
        (JOB.but(deadline="1s"), "changed deadline of job a to '1s'; it must be a time as text, such as '2026-"),
        (JOB.but(deadline=timedelta(1)), "changed deadline of job a to datetime.timedelta"),
        (JOB.but(timeout="5m"), "changed timeout of job a to '5m'; it must be a number of seconds"),
        (JOB.but(max_retries=True), "changed max_retries of job a to True; it must be a whole number"),
        (JOB.but(payload={"a": 1}), "changed payload of job a to {'a': 1}; it must be encoded JSON"),
        (JOB.but(unique_key="\n"), "unique_key"),
    ],
)
def test_what_is_no_valid_job_is_refused(result: Any, says: str) -> None:
    fileq.before_enqueue(lambda job: result)
    with pytest.raises(JobError, match=says):
        apply_before_enqueue(JOB)


def test_a_function_that_can_not_be_called_with_a_job_is_found_at_the_start() -> None:
    @fileq.before_enqueue
    def two(job: Job, context: Any) -> Job:
        return job

    @fileq.before_enqueue
    async def waits(job: Job) -> Job:
        return job

    with pytest.raises(ConfigError) as raised:
        load_before_enqueue(config_from({"producer": {"imports": ["nowhere"]}}), app_dir="")
    module, takes, is_async = raised.value.problems
    assert module.startswith("producer.imports[0] names the module nowhere")
    assert "two, which takes (job" in takes
    assert takes.endswith("a function for before_enqueue is called with (job)")
    assert is_async.endswith("waits, which is async; a producer does not await it")


def test_a_worker_warns_of_a_function_that_a_producer_would_not_import() -> None:
    fileq.before_enqueue(test_none_is_a_veto_and_the_functions_after_it_are_not_called)
    warning = "does not run in a producer of its own; name tests.unit.handlers.test_before_enqueue in producer.imports"
    [found] = Routes.load(config_from({}), app_dir="").warnings
    assert found.endswith(warning)
    config = config_from({"producer": {"imports": ["tests.unit.handlers.test_before_enqueue"]}})
    assert Routes.load(config, app_dir="").warnings == ()
