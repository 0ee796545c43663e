"""After a step of the broker's clock back, jobs that wait for a delay run on the real program, on both brokers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fileq.core.job import State, rfc3339
from fileq.testing.conformance.builders import claim_one, deferred, enqueue, failed, ids_in, record_of, settle
from tests.support.program import REPOSITORY
from tests.support.sqlite_store import change_one_row
from tests.support.worker_setup import WorkerSetup

HOUR_MS = 3_600_000
ANY_FILE = '[{match: "**/*", use: "fileq.handlers:checksum"}]'


def scheduled_ahead(setup: WorkerSetup, id: str, by_ms: int = HOUR_MS) -> None:
    """Writes what the broker would have, had its clock been ahead when this job was scheduled."""
    raw = record_of(setup, id).raw
    if setup.broker.kind == "redis":
        client = setup.server_client()
        client.zincrby("jobqueue:scheduled", by_ms, raw)
        for field in ("due", "since"):
            client.hincrby(f"jobqueue:job:{id}", field, by_ms)
    else:
        change_one_row(setup.broker, "UPDATE scheduled SET due_ms = due_ms + ? WHERE raw = ?", by_ms, raw)
        sql = "UPDATE records SET due_ms = due_ms + ?, since_ms = since_ms + ? WHERE id = ?"
        change_one_row(setup.broker, sql, by_ms, by_ms, id)


def file_jobs(setup: WorkerSetup, *ids: str) -> list[str]:
    """Enqueues one file job for each id."""
    for id in ids:
        (setup.inbox / id).write_text(id)
        setup.enqueue_file(setup.inbox / id, id)
    return list(ids)


def test_a_worker_that_starts_after_the_step_runs_jobs_that_wait_for_their_delay(each_setup: WorkerSetup) -> None:
    setup = each_setup
    file_jobs(setup, "failed", "deferred")
    settle(setup, failed(claim_one(setup), delay_ms=200))
    settle(setup, deferred(claim_one(setup), delay_ms=200))
    for id in ("failed", "deferred"):
        scheduled_ahead(setup, id)
    enqueue(setup, "at", at_ms=record_of(setup, "failed").due_ms)
    setup.broker.deregister(["w1"])
    setup.worker(count=1, handlers=ANY_FILE)
    setup.wait_for(State.COMPLETED, ["failed", "deferred"])
    assert ids_in(setup, "scheduled") == ["at"]
    assert setup.census().drift == 0


SHIFTED = """
import time

_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {by_s}
time.time_ns = lambda: _time_ns() + {by_s} * 10**9
"""


@pytest.mark.parametrize("by_s", [3600, -3600], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_wrong_starts_no_job_after_its_deadline_and_all_before(
    setup: WorkerSetup, by_s: int
) -> None:
    """low: deadlines use the worker's clock. Its process is an hour ahead of Redis, or behind."""
    (setup.directory / "sitecustomize.py").write_text(SHIFTED.format(by_s=by_s))
    now = datetime.now(UTC)
    passed, ahead = (rfc3339(now + timedelta(minutes=minutes)) for minutes in (-10, 10))
    setup.enqueue("note", "late", deadline=passed)
    setup.enqueue("note", "early", deadline=ahead)
    setup.worker(count=1, variables={"PYTHONPATH": f"{setup.directory}:{REPOSITORY}"})
    setup.wait_ended(["late", "early"])
    assert (setup.record("late").state, setup.record("late").error) == (State.DEAD, "deadline passed")
    assert setup.record("early").state is State.COMPLETED
