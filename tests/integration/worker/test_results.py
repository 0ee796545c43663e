"""What a handler returns, as the record of its job keeps it."""

from __future__ import annotations

import json

import pytest

from fileq.core.job import State
from tests.support.worker_setup import WorkerSetup

TASKS = """
import pathlib, fileq

@fileq.task("path"{options})
def path(job: fileq.JobView[None], context: fileq.Context) -> pathlib.Path:
    context.enqueue("kept")
    return pathlib.Path("/tmp/a")

@fileq.task("long"{options})
def long(job: fileq.JobView[None], context: fileq.Context) -> str:
    return "a" * 70_000

@fileq.task("kept"{options})
def kept(job: fileq.JobView[None], context: fileq.Context) -> str:
    return "a"

@fileq.handler(type="handler"{options})
def handler(job, context):
    return pathlib.Path("/tmp/a")
"""


def test_not_a_number_in_a_result_is_reported_and_not_stored_as_null(each_setup: WorkerSetup) -> None:
    program = each_setup.worker(count=1)
    each_setup.enqueue("not_a_number", "a")
    each_setup.wait_ended(["a"])
    warning = program.wait_for("job.result_dropped")
    assert warning["job_id"] == "a"
    assert "it contains nan, which JSON does not have" in str(warning)
    assert each_setup.record("a").result == b""


@pytest.mark.parametrize("options", ["", ', isolation="thread"'], ids=["process", "thread"])
def test_a_task_whose_result_can_not_be_kept_is_dead_and_a_handler_completes(
    each_setup: WorkerSetup, options: str
) -> None:
    (each_setup.directory / "keeping.py").write_text(TASKS.replace("{options}", options))
    program = each_setup.worker(count=1, imports="keeping")
    types = ["path", "long", "kept", "handler"]
    for type in types:
        each_setup.enqueue(type, type)
    each_setup.wait_ended(types)
    for type, reason in (
        ("path", "the result of type PosixPath can't be kept: it is not JSON (TypeError: "),
        ("long", "the result of type str can't be kept: it has 70002 bytes of JSON, and 65536 are kept"),
    ):
        record = each_setup.record(type)
        assert (record.state, record.attempt_count, record.follow_ups) == (State.DEAD, 1, ())
        assert record.error.startswith(f"Permanent: {reason}"), record.error
        assert "; return None, or a Struct" in record.error
    assert json.loads(each_setup.record("kept").result) == "a"
    assert (each_setup.record("handler").state, each_setup.record("handler").result) == (State.COMPLETED, b"")
    assert "the result was dropped: it is not JSON" in str(program.wait_for("job.result_dropped"))
