"""What a handler returns, as the record of its job keeps it."""

from __future__ import annotations

from tests.support.worker_setup import WorkerSetup


def test_not_a_number_in_a_result_is_reported_and_not_stored_as_null(each_setup: WorkerSetup) -> None:
    program = each_setup.worker(count=1)
    each_setup.enqueue("not_a_number", "a")
    each_setup.wait_ended(["a"])
    warning = program.wait_for("job.result_dropped")
    assert warning["job_id"] == "a"
    assert "it contains nan, which JSON does not have" in str(warning)
    assert each_setup.record("a").result == b""
