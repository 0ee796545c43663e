"""What happens to files after their job (`worker.after`). The installed program, with every broker where it matters."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fileq.core.job import State
from tests.support.command_line import CommandLine
from tests.support.producer_setup import wait_for_new_scan
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_file_moved_below_scan_dir_is_not_processed_again(each_setup: WorkerSetup) -> None:
    setup = each_setup
    inbox = setup.inbox
    for name in ("good", "bad.txt"):
        (inbox / name).write_text(name)
    handlers = on_files("on_file").replace("[", '[{match: "bad.txt", use: "worker_handlers:permanent"}, ')
    program = setup.worker(
        str(inbox),
        role="all",
        count=2,
        handlers=handlers,
        worker__after__completed=f"move:{inbox}/done",
        worker__after__dead=f"move:{inbox}/failed/today",
        producer__rescan_interval="1s",
    )
    wait_until(lambda: files_below(inbox) == ["done/good", "failed/today/bad.txt"], 30)
    wait_for_new_scan(program, 2)
    (inbox / "late").write_text("late")  # proof that it still finds files, by events and by scans
    wait_until(lambda: (inbox / "done/late").exists(), 30)
    wait_for_new_scan(program, 2)
    assert setup.census().counters["produced"] == 3
    assert files_below(inbox) == ["done/good", "done/late", "failed/today/bad.txt"]


def test_a_moved_file_keeps_its_path_below_the_root_and_replaces_nothing(setup: WorkerSetup) -> None:
    inbox, done = setup.inbox, setup.directory / "done"
    names = ["top.txt", "a/b/deep.txt", "a/taken.tar", "a/dir"]
    for name in names:
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        (inbox / name).write_text(name)
        setup.enqueue_file(inbox / name, name.replace("/", ":"))
    (done / "a/dir").mkdir(parents=True)
    (done / "a/taken.tar").write_text("old")
    worker = setup.worker(count=2, handlers=on_files("on_file"), worker__after__completed="move:done")
    setup.wait_for(State.COMPLETED, [name.replace("/", ":") for name in names])
    assert worker.stop() == 0  # it waits for the post actions
    assert files_below(done) == ["a/b/deep.txt", "a/dir.1", "a/taken.1.tar", "a/taken.tar", "top.txt"]
    assert (done / "a/taken.tar").read_text() == "old"
    assert files_below(inbox) == []


def test_a_file_is_moved_across_devices(setup: WorkerSetup) -> None:
    path = setup.inbox / "a/file.txt"
    path.parent.mkdir()
    path.write_text("text")
    modified_ns = path.stat().st_mtime_ns
    setup.enqueue_file(path, "file")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        moved = Path(other) / "done/a/file.txt"
        worker = setup.worker(count=1, handlers=on_files("on_file"), worker__after__completed=f"move:{other}/done")
        setup.wait_for(State.COMPLETED, ["file"])
        assert worker.stop() == 0
        assert (moved.read_text(), moved.stat().st_mtime_ns) == ("text", modified_ns)
    assert not path.exists()


def test_links_and_dots_in_a_path_never_lead_out_of_the_folder(setup: WorkerSetup) -> None:
    """Every program that can push a job can name any path."""
    inbox, done = setup.inbox, setup.directory / "done"
    (inbox / "real").mkdir()
    (inbox / "link").symlink_to("real")
    paths = {"dots": inbox / "real" / ".." / ".." / inbox.name / "real/dots", "link": inbox / "link/linked"}
    for id, path in paths.items():
        path.write_text(id)
        setup.enqueue_file(path, id)
    worker = setup.worker(count=1, handlers=on_files("on_file"), worker__after__completed=f"move:{done}")
    setup.wait_for(State.COMPLETED, list(paths))
    assert worker.stop() == 0
    assert files_below(done) == ["real/dots", "real/linked"]


def test_a_file_in_the_folder_of_dead_files_is_moved_to_the_same_path_or_stays(setup: WorkerSetup) -> None:
    inbox = setup.inbox
    (inbox / "failed/a").mkdir(parents=True)
    for name in ("good", "bad.txt"):
        (inbox / "failed/a" / name).write_text(name)
        setup.enqueue_file(inbox / "failed/a" / name, name)
    worker = setup.worker(
        count=1,
        handlers=on_files("on_file").replace("[", '[{match: "**/bad.txt", use: "worker_handlers:permanent"}, '),
        worker__after__completed=f"move:{inbox}/done",
        worker__after__dead=f"move:{inbox}/failed",
    )
    assert setup.wait_ended(["good", "bad.txt"]) == {"completed": 1, "dead": 1}
    assert worker.stop() == 0
    assert files_below(inbox) == ["done/a/good", "failed/a/bad.txt"]


@pytest.mark.parametrize(
    ("function", "error"),
    [("fails_without_its_file", "ValueError: page 3 is broken"), ("dies_without_its_file", "exited with status 3")],
)
def test_a_retry_keeps_the_first_error_when_its_file_was_deleted(
    each_setup: WorkerSetup, shell: CommandLine, function: str, error: str
) -> None:
    setup, path = each_setup, each_setup.inbox / "a"
    path.write_bytes(b"x")
    setup.enqueue_file(path, "bad")
    setup.worker(count=1, handlers=on_files(function))
    setup.wait_for(State.DEAD, ["bad"])
    whole = setup.record("bad").attempts[0].error
    assert error in whole
    wanted = f"{whole}; retried, but file vanished"
    assert (setup.record("bad").error, setup.job("bad").error) == (wanted, wanted)
    assert shell.json("admin", "show", "bad")["error"] == wanted
    assert shell.json("admin", "dlq", "list")["jobs"][0]["error"] == wanted


@pytest.mark.parametrize("setting", ["dead", "skip"])
def test_a_file_that_was_deleted_while_queued_is_one_outcome(each_setup: WorkerSetup, setting: str) -> None:
    setup = each_setup
    names = ids("vanished", 3)
    for name in names:
        (setup.inbox / name).write_bytes(b"x")
        setup.enqueue_file(setup.inbox / name, name)
        (setup.inbox / name).unlink()
    setup.enqueue("note", "good")
    settings = {"worker__vanished": setting} if setting != "dead" else {}  # dead is the default
    worker = setup.worker(
        count=1, handlers=on_files("on_file"), circuit_breaker__min_samples=1, worker__after__dead="delete", **settings
    )
    ended = {"dead": 3, "completed": 1} if setting == "dead" else {"completed": 4}
    assert setup.wait_ended([*names, "good"]) == ended
    records = [setup.record(name) for name in names]
    word = "vanished" if setting == "dead" else "skipped"
    assert [[attempt.outcome for attempt in record.attempts] for record in records] == [[word]] * 3
    assert {record.error for record in records} == {"file vanished" if setting == "dead" else ""}
    assert {setup.job(name).retries for name in names} == {0}
    counters = setup.census().counters
    assert (counters.get("failed", 0), counters.get("retried", 0), counters.get("dead", 0)) == (
        0,
        0,
        ended.get("dead", 0),
    )
    wait_until(lambda: worker.metric("jobs_vanished_total") == 3, 10)
    assert (worker.metric("jobs_failed_total"), worker.metric("circuit_breaker_trips_total")) == (0, 0)
    assert setup.logged("file") == []
    line = worker.wait_for("job.dead" if setting == "dead" else "job.completed")
    assert line["is_vanished"] is True
