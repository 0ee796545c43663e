"""One version of a file at a time: a newer job of a file waits while an older one runs. The installed program."""

from __future__ import annotations

from fileq.core.job import State
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files

GATED = on_files("on_file_after_gate")


def steps(setup: WorkerSetup) -> list[tuple[str, str]]:
    return [(line.word, line.id) for line in setup.handler_log()]


def test_a_new_version_waits_until_the_handler_of_the_old_one_has_ended(each_setup: WorkerSetup) -> None:
    setup = each_setup
    path = setup.inbox / "report.txt"
    path.write_bytes(b"1")
    both = setup.worker(role="all", count=2, handlers=GATED)
    [first] = setup.wait_logged("start", 1)
    path.write_bytes(b"22")
    wait_until(lambda: both.events("job.deferred") or len(setup.logged("start")) > 1, 20)
    assert setup.logged("start") == [first]
    [event] = both.events("job.deferred")
    second = event["job_id"]
    assert (event["reason"], event["filepath"]) == ("an earlier job of this file is running", str(path))
    setup.open_gate()
    setup.wait_for(State.COMPLETED, [first, second])
    assert steps(setup) == [("start", first), ("end", first), ("start", second), ("end", second)]
    record = setup.record(second)
    assert (record.attempt_count, setup.job(second).retries, record.after) == (1, 0, (first,))
    assert setup.census().drift == 0


def test_jobs_of_one_version_run_one_after_the_other_and_a_run_once_waits_for_all(
    each_setup: WorkerSetup, shell: CommandLine
) -> None:
    setup = each_setup
    (setup.inbox / "report.txt").write_bytes(b"1")
    for id in ("a", "b"):
        shell.run("enqueue", str(setup.inbox / "report.txt"), "--id", id)
    once = setup.worker(str(setup.inbox), "--once", wait=False, count=2, handlers=GATED)
    wait_until(lambda: setup.record("b").deferred_count or len(setup.logged("start")) > 1, 20)
    setup.open_gate()
    assert once.wait() == 0, once.text()
    assert steps(setup) == [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]


def test_a_third_job_of_one_version_waits_for_the_first_as_the_second_does(
    each_setup: WorkerSetup, shell: CommandLine
) -> None:
    setup = each_setup
    (setup.inbox / "report.txt").write_bytes(b"1")
    setup.worker(count=3, handlers=GATED)
    shell.run("enqueue", str(setup.inbox / "report.txt"), "--id", "a")
    setup.wait_logged("start", 1)
    for id in ("b", "c"):
        shell.run("enqueue", str(setup.inbox / "report.txt"), "--id", id)
        wait_until(lambda id=id: setup.record(id).deferred_count or len(setup.logged("start")) > 1, 20)  # type: ignore[misc]
    assert setup.logged("start") == ["a"]
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["a", "b", "c"])
