"""Files that worker.after has moved: their records have the new paths, and commands use them. The installed program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fileq.core.job import State
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files

FAILING = '[{match: "a/*", use: "worker_handlers:permanent"}]'
# As narrow as the failing route: the file must have the same path for routes when it has been moved.
WORKING = '[{match: "a/*", use: "worker_handlers:on_file"}]'


def moved_dead_file(setup: WorkerSetup, failed: Path) -> Path:
    """A file whose job `bad` died, and which was moved to that folder. Returns its old path."""
    path = setup.inbox / "a/bad.txt"
    path.parent.mkdir()
    path.write_text("text")
    setup.enqueue_file(path, "bad")
    worker = setup.worker(count=1, handlers=FAILING, worker__after__dead=f"move:{failed}")
    setup.wait_for(State.DEAD, ["bad"])
    wait_until(lambda: setup.record("bad").moved_to == bytes(failed / "a/bad.txt"), 10)
    assert worker.stop() == 0
    return path


@pytest.mark.parametrize("folder", ["failed", "in/failed"])
def test_a_dead_job_is_retried_with_its_moved_file(each_setup: WorkerSetup, shell: CommandLine, folder: str) -> None:
    setup, failed, done = each_setup, each_setup.directory / folder, each_setup.directory / "done"
    path = moved_dead_file(setup, failed)
    assert shell.json("admin", "show", "bad")["moved_to"] == str(failed / "a/bad.txt")
    assert f"moved to {failed / 'a/bad.txt'}" in shell.run("admin", "trace", str(path))
    for retry in (("--all", "--dry-run"), ("bad", "--dry-run"), ("bad",)):
        assert f"bad  {failed / 'a/bad.txt'}\n" in shell.run("admin", "dlq", "retry", *retry)
    shown = shell.run("admin", "show", "bad")
    assert re.search(rf"^file +{failed}/a/bad\.txt\nmoved from +{path}\n", shown, re.MULTILINE)
    assert "moved to" not in shown
    worker = setup.worker(
        count=1, handlers=WORKING, worker__after__dead=f"move:{failed}", worker__after__completed=f"move:{done}"
    )
    setup.wait_for(State.COMPLETED, ["bad"])
    wait_until(lambda: setup.record("bad").moved_to == bytes(done / "a/bad.txt"), 10)
    assert worker.stop() == 0
    assert (done / "a/bad.txt").read_text() == "text"
    assert f"moved to {done / 'a/bad.txt'}" in shell.run("admin", "trace", str(path))


def test_a_retried_job_waits_for_the_folder_of_its_moved_file(each_setup: WorkerSetup, shell: CommandLine) -> None:
    setup, failed = each_setup, each_setup.directory / "failed"
    moved_dead_file(setup, failed)
    failed.rename(setup.directory / "unmounted")
    shell.run("dlq", "retry", "bad")
    worker = setup.worker(count=1, handlers=WORKING, worker__after__dead=f"move:{failed}")
    wait_until(lambda: setup.record("bad").deferred.startswith(f"the folder {failed}"), 10)
    wait_until(lambda: worker.events("root.lost"))
    (setup.directory / "unmounted").rename(failed)
    setup.wait_for(State.COMPLETED, ["bad"])
    assert setup.record("bad").attempt_count == 2, "the failure before it was put back, and this run"


def test_a_retry_keeps_the_first_error_when_the_moved_file_was_deleted(
    each_setup: WorkerSetup, shell: CommandLine
) -> None:
    setup, failed = each_setup, each_setup.directory / "failed"
    moved_dead_file(setup, failed)
    first = setup.job("bad").error
    (failed / "a/bad.txt").unlink()
    shell.run("admin", "dlq", "retry", "bad")
    setup.worker(count=1, handlers=WORKING, worker__after__dead=f"move:{failed}")
    wait_until(lambda: setup.record("bad").attempt_count == 2, 10)
    assert setup.job("bad").error == f"{first}; retried, but file vanished"


def test_a_moved_file_is_reprocessed_where_it_is(each_setup: WorkerSetup, shell: CommandLine) -> None:
    setup, done = each_setup, each_setup.directory / "done"
    path = setup.inbox / "a/good.txt"
    path.parent.mkdir()
    path.write_text("text")
    setup.enqueue_file(path, "good")
    worker = setup.worker(count=1, handlers=WORKING, worker__after__completed=f"move:{done}")
    wait_until(lambda: setup.record("good").moved_to == bytes(done / "a/good.txt"), 10)
    for _ in range(2):
        report = shell.json("admin", "reprocess", "--all")
        assert (report["enqueued"], report["missing"]) == (1, 0)
        [again] = report["files"]
        assert again["path"] == str(done / "a/good.txt")
        setup.wait_for(State.COMPLETED, [again["job_id"]])
    assert worker.stop() == 0
    assert (done / "a/good.txt").read_text() == "text"
    assert len(setup.logged("file")) == 3


def test_a_second_job_of_a_version_that_was_processed_and_moved_is_skipped(
    each_setup: WorkerSetup, shell: CommandLine
) -> None:
    setup, path = each_setup, each_setup.inbox / "a.txt"
    path.write_text("text")
    settings = {"worker__after__completed": f"move:{setup.directory / 'done'}"}
    first = setup.enqueue_file(path, "first")
    setup.worker(count=2, handlers=on_files("gated"), **settings)
    setup.wait_logged("start", 1)
    second = shell.run("enqueue", str(path)).strip()
    wait_until(lambda: setup.record(second).deferred, 10)
    setup.open_gate()
    setup.wait_ended([first, second])
    assert [attempt.outcome for attempt in setup.record(second).attempts] == ["skipped"]
    assert setup.logged("end") == ["first"]
    assert setup.census().dead == 0
