"""Jobs whose deadline passes while they wait die without being claimed. The installed program, on both brokers."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from fileq.brokers.types import Entry
from fileq.commands.admin.fsck.check import fsck
from fileq.core.job import State, file_job, rfc3339_ms
from fileq.testing.conformance.builders import a_job
from fileq.worker.deadlines import Deadlines
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files


def soon() -> str:
    """Long enough that the jobs wait when it passes, in a worker that starts afterwards too."""
    return rfc3339_ms(round(datetime.now(UTC).timestamp() * 1000) + 1500)


def enqueue_file(setup: WorkerSetup, path: Path, id: str) -> None:
    path.write_text(id)
    status = path.stat()
    signature = f"{status.st_size}-{status.st_mtime_ns}"
    job = file_job(
        os.fsencode(path), size=status.st_size, priority="low", now=datetime.now(UTC), signature=signature, id=id
    )
    setup.broker.enqueue([Entry(job.but(deadline=soon()), "low")])


def test_a_job_in_a_paused_queue_dies_at_its_deadline_with_everything_that_follows(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.broker.pause("low")
    failed = setup.inbox / "failed"
    worker = setup.worker(handlers=on_files("on_file", on_dead="note"), worker__after__dead=f"move:{failed}")
    enqueue_file(setup, setup.inbox / "a", "a")
    setup.wait_for(State.DEAD, ["a"])
    record = setup.record("a")
    assert (record.error, [attempt.outcome for attempt in record.attempts]) == ("deadline passed", ["refused"])
    line = worker.wait_for("job.dead")  # it is logged after the broker knows
    assert (line["job_id"], line["error"]) == ("a", "deadline passed")
    wait_until(lambda: (failed / "a").exists(), what="the file is moved")
    setup.broker.resume("low")
    setup.wait_for(State.COMPLETED, list(record.follow_ups))
    assert setup.logged("note") == list(record.follow_ups)
    assert len(record.follow_ups) == 1
    assert setup.logged("start") == []
    assert worker.stop() == 0
    assert len(worker.events("job.dead")) == 1
    assert fsck(setup.broker, setup.config, sleep=lambda s: None).is_clean


def test_jobs_that_wait_for_a_slot_a_time_or_a_retry_die_at_their_deadline(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.worker(count=1)
    setup.enqueue("later", "retrying", payload=600, deadline=soon())
    setup.wait_for(State.RETRYING, ["retrying"])
    setup.enqueue("gated", "busy")
    setup.wait_for(State.RUNNING, ["busy"])
    setup.enqueue("note", "pending", deadline=soon())
    job = setup.job("pending").but(id="scheduled")
    setup.broker.enqueue([Entry(job, "low", delay_ms=600_000)])
    setup.wait_for(State.DEAD, ["retrying", "pending", "scheduled"])
    assert {setup.record(id).error for id in ("retrying", "pending", "scheduled")} == {"deadline passed"}
    assert setup.record("busy").state is State.RUNNING, "no slot was free"
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["busy"])
    assert setup.census().drift == 0


def test_show_says_that_a_job_died_while_it_waited(shell: CommandLine) -> None:
    shell.broker.enqueue([Entry(a_job("a", deadline="2020-01-01T00:00:00Z"), "low")])
    Deadlines(shell.config, shell.broker, add_follow_ups=lambda settlement: settlement).turn()
    shown = [line.strip() for line in shell.run("show", "a").splitlines()]
    assert shown[-1] == "while pending"
    assert "deadline passed" in shown


def test_a_deadline_that_passes_while_no_worker_runs_is_noticed_by_the_next_one(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.broker.pause("low")
    setup.enqueue("note", "a", deadline="2020-01-01T00:00:00Z")
    setup.worker()
    setup.wait_for(State.DEAD, ["a"])
