"""Workers with different handlers on one broker: each job runs where its handler is. The installed program."""

from __future__ import annotations

from fileq.core.job import State
from tests.support import program
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.waiting import wait_until
from tests.support.worker_setup import MODULE, WorkerSetup, ids, on_files

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


def test_a_file_job_runs_in_the_worker_that_has_its_root(each_setup: WorkerSetup) -> None:
    setup, jobs = each_setup, list[str]()
    workers, roots = [], []
    for name in ("one", "two"):
        root = setup.directory / name
        root.mkdir()
        roots.append(root)
        workers.append(setup.worker(str(root), "--count", "1", max_retries=0, handlers=on_files("note")))
    wait_until(lambda: sum(bool(view.info.roots) for view in setup.broker.workers()) == 2)
    own = setup.all_settings(producer__scan_dir=roots[0])
    shown = program.run("doctor", cwd=setup.directory, settings=own).stdout
    assert (f"has other roots ({roots[1]})" in shown, f"has other roots ({roots[0]})" in shown) == (True, False)
    for number in range(20):
        for root in roots:
            (root / str(number)).touch()
            jobs.append(setup.enqueue_file(root / str(number), f"{root.name}-{number}"))
    setup.wait_for(State.COMPLETED, jobs, 60)
    assert {setup.record(job).attempt_count for job in jobs} == {1}
    assert workers[0].stop() == 0
    setup.enqueue_file(roots[0] / "1", "late", known=False)
    assert setup.wait_ended(["late"]) == {"dead": 1}, "no running worker has its root"
    assert "leads outside the allowed roots" in setup.record("late").error
