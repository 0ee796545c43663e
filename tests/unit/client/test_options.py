"""The options of a new job: what callers may write, and what they are told otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from fileq.core.errors import ConfigError
from fileq.core.job import decode, encode, typed_job
from fileq.core.job_options import EnqueueOptions, JobOptions, Moment, declared_options, options_of
from fileq.server.api.job_endpoints import NewJob

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def problems(**given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        options_of(EnqueueOptions(**given))  # type: ignore[typeddict-item]
    return list(caught.value.problems)


@pytest.mark.parametrize("delay", ["5m", 300, 300.0, timedelta(minutes=5)])
def test_a_duration_is_a_text_a_number_of_seconds_or_a_timedelta(delay: Any) -> None:
    options = options_of({"delay": delay, "timeout": delay, "deadline": delay})
    assert (options.delay_ms, options.timeout_s, options.deadline) == (300_000, 300.0, Moment(300_000, True))
    job = options.applied(typed_job("t", None, priority="low", now=NOW), round(NOW.timestamp() * 1000))
    assert (job.process_at, job.deadline) == ("2026-11-16T00:05:00.000Z",) * 2


def test_the_longest_timeout_that_is_accepted_can_be_read_by_a_worker() -> None:
    """A1: from 1e9 seconds on the broker lost the job."""
    for timeout in ("36500d", 36_500 * 86_400):
        job = options_of({"timeout": timeout}).applied(typed_job("t", None, priority="low", now=NOW), 1)
        assert decode(encode(job)).timeout == 36_500 * 86_400
    assert "timeout is 3153600001" in problems(timeout=36_500 * 86_400 + 1)[0]


def test_a_time_needs_its_zone() -> None:
    assert options_of({"at": NOW, "deadline": NOW}).at_ms == round(NOW.timestamp() * 1000)
    assert "must be a datetime with its zone" in problems(at=datetime(2026, 1, 1))[0]
    assert "must be a datetime with its zone" in problems(deadline=datetime(2026, 1, 1))[0]
    assert "must be a datetime with its zone" in problems(at="2026-01-01T00:00:00")[0]
    assert "must be a datetime with its zone" in problems(deadline="2026-01-01")[0]


def test_a_time_may_be_a_text() -> None:
    options = options_of({"at": "2026-11-16T01:00:00+01:00", "deadline": "2026-11-16T00:00:00Z"})
    assert (options.at_ms, options.deadline) == (round(NOW.timestamp() * 1000), Moment(round(NOW.timestamp() * 1000)))
    assert problems(at="5m") == [
        "at is '5m'; it must be a datetime with its zone, such as datetime.now(UTC), or a text such as "
        "2026-11-16T12:00:00Z"
    ]
    [wrong] = problems(deadline="5 m")
    assert "'5 m'; it must be a time such as 2026-11-16T12:00:00Z, or a duration such as 500ms, 30s, 1m" in wrong


def test_a_value_of_another_type_is_a_problem_of_the_option_like_any_other() -> None:
    found = problems(priority=1, at=2, unique_key=5, id=7, tags=["a"], batch=8, deadline=[], delay={}, timeout=object)
    assert [line.split(";")[0] for line in found] == [
        "priority is 1",
        "delay is {}",
        "at is 2",
        "timeout is <class 'object'>",
        "deadline is []",
        "unique_key is 5",
        "id is 7",
        "tags is ['a']",
        "batch is 8",
    ]


def test_every_wrong_option_is_named() -> None:
    found = problems(
        delay="soon", timeout=0, max_retries=-1, id="a b", unique_key="x\n", tags={"a": "b" * 201}, deadline=-1
    )
    named = ["delay", "max_retries", "timeout", "deadline", "unique_key", "id", "the"]
    assert [line.split()[0] for line in found] == named
    assert "delay and at are both set" in problems(delay=1, at=NOW)[0]


def test_an_option_that_does_not_exist_is_a_type_error_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"option 'dealy'; known: at, batch, deadline, delay.*; did you mean 'delay'\?"):
        options_of({"dealy": 1})  # type: ignore[typeddict-unknown-key]


def test_none_is_an_option_that_is_not_given() -> None:
    names = EnqueueOptions.__annotations__
    assert options_of(cast(EnqueueOptions, dict.fromkeys(names))) == options_of({})


def test_every_option_is_a_field_and_is_read_by_a_server_as_it_was_sent() -> None:
    options = options_of({"batch": "b", "priority": "low", "at": NOW, "max_retries": 0, "timeout": 1.5, "deadline": 5})
    assert options.sent() == {
        "priority": "low",
        "scheduled_at": "2026-11-16T00:00:00.000Z",
        "max_retries": 0,
        "timeout": 1.5,
        "deadline": 5.0,
        "batch_id": "b",
    }
    assert {one.field for one in declared_options(EnqueueOptions).values()} <= set(JobOptions.__struct_fields__)
    assert {one.sent_as for one in declared_options(EnqueueOptions).values()} <= set(NewJob.__struct_fields__)


def test_tags_are_bounded() -> None:
    assert "a job can have 20" in problems(tags={str(i): "" for i in range(21)})[0]
    assert "the tag 'a\\n' can't be used" in problems(tags={"a\n": ""})[0]
    assert "the tag a is 3" in problems(tags={"a": 3})[0]


def test_tags_are_a_field_of_the_job_and_another_form_of_it_is_kept() -> None:
    job = options_of({"tags": {"tenant": "acme"}}).applied(typed_job("t", None, priority="low", now=NOW), 0)
    assert b'"tags":{"tenant":"acme"}' in encode(job)
    assert decode(encode(job)).tag_values == {"tenant": "acme"}
    foreign = encode(job).replace(b'{"tenant":"acme"}', b'["a",1]')
    assert decode(foreign).tag_values == {}
    assert encode(decode(foreign)) == foreign
