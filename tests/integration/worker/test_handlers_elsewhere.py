"""Workers with different handlers on one broker: each job runs where its handler is. The installed program."""

from __future__ import annotations

from fileq.core.job import State
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.waiting import wait_until
from tests.support.worker_setup import MODULE, WorkerSetup, ids

__all__ = ["running_scenarios"]

OLD = """
import fileq

@fileq.task("old")
def old(job: fileq.JobView, context: fileq.Context) -> str:
    return "made"
"""


@parallel_scenario("valkey", "redis", "sqlite")
def test_a_job_runs_in_the_worker_that_has_its_handler(setup: WorkerSetup) -> None:
    (setup.directory / "oldjobs.py").write_text(OLD)
    old = setup.worker(imports="oldjobs", handlers="[{match: '**/*.csv', command: ['true']}]", count=1)
    new = setup.worker(imports=MODULE, handlers=f'[{{match: "**/*.txt", use: "{MODULE}:on_file"}}]')
    wait_until(lambda: sum(view.info.types is not None for view in setup.broker.workers()) == 2)
    (setup.inbox / "a.txt").write_text("x")
    jobs = [*setup.enqueue("note", *ids("note", 40)), setup.enqueue_file(setup.inbox / "a.txt")]
    setup.wait_for(State.COMPLETED, jobs, 60)
    for record in setup.broker.records(jobs):
        assert record is not None
        assert record.attempt_count == 1
    assert new.stop() == 0
    setup.enqueue("note", "late")
    assert setup.wait_ended(["late"]) == {"dead": 1}, "no running worker has its handler"
    assert setup.record("late").error.startswith("no handler for type 'note'")
    assert old.stop() == 0
