"""What the task of a claim is allowed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fileq.config import config_from
from fileq.core.job import MADE_BY_TAG, Claim, encode, encoded_tags, typed_job
from fileq.core.outcome import Task
from fileq.worker.pump import prepare
from tests.support.handler_runs import routes_of

NOW = datetime(2026, 11, 16, tzinfo=UTC)


@pytest.mark.parametrize(("tags", "given", "timeout_s"), [("k1", 9e8, 300.0), ("k1", 2.0, 2.0), ("", 9e8, 9e8)])
def test_a_limited_key_can_shorten_the_timeout_and_not_extend_it(tags: str, given: float, timeout_s: float) -> None:
    """A8: a key that may only enqueue set a timeout of years, and its jobs held the slots."""
    job = typed_job("t", None, priority="low", now=NOW)
    job = job.but(timeout=given, tags=encoded_tags({MADE_BY_TAG: tags} if tags else {}))
    routes = routes_of({"type": "t", "use": "fileq.handlers:checksum"})
    task = prepare(Claim("w", 1, "low", encode(job), job, job.id), routes, config_from({}).paths)
    assert isinstance(task, Task)
    assert task.timeout_s == timeout_s
