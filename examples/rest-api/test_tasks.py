from __future__ import annotations

import tasks

import fileq.testing


def test_a_report_is_completed_and_a_broken_job_is_dead() -> None:
    with fileq.testing.queue(imports=["tasks"]) as q:
        made = q.enqueue(tasks.report, tasks.Report(3))
        q.enqueue("broken")
        assert q.drain() == 2
        assert made.wait(0) == {"pages": 3}
        assert [job.type for job in q.dead] == ["broken"]
