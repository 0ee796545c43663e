"""A file replaced by another of the same size and time: the installed program on Redis and on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fileq.brokers.types import Entry
from fileq.core.job import State, Version, file_job
from fileq.files.status import signature_of
from tests.support.command_line import CommandLine
from tests.support.inodes import inode_directory, replace_unnoticed
from tests.support.producer_setup import wait_for_new_scan
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    yield from inode_directory(tmp_path)


def test_a_replaced_file_is_processed_again_by_default_and_not_by_stat(each_setup: WorkerSetup) -> None:
    setup, path = each_setup, each_setup.inbox / "file"
    path.write_bytes(b"1")
    settings = {"role": "all", "handlers": on_files("on_file"), "producer__rescan_interval": "100ms"}
    by_stat = setup.worker(producer__identity="stat", **settings)  # type: ignore[arg-type]
    setup.wait_logged("file", 1)
    replace_unnoticed(path, b"2")
    wait_for_new_scan(by_stat)
    assert by_stat.stop() == 0
    by_inode = setup.worker(**settings)  # type: ignore[arg-type]
    wait_for_new_scan(by_inode)
    assert len(setup.logged("file")) == 1, "the setting alone makes nothing new"
    replace_unnoticed(path, b"3")
    setup.wait_logged("file", 2)
    wait_for_new_scan(by_inode)
    assert len(set(setup.logged("file"))) == len(setup.logged("file")) == 2


def test_by_content_a_touched_file_is_not_processed_again_and_a_replaced_one_is(each_setup: WorkerSetup) -> None:
    setup, path = each_setup, each_setup.inbox / "file"
    path.write_bytes(b"1")
    settings = {"producer__rescan_interval": "100ms", "producer__identity": "content"}
    program = setup.worker(role="all", handlers=on_files("on_file"), **settings)
    setup.wait_logged("file", 1)
    path.touch()
    wait_until(lambda: newest_of(setup, path).startswith(signature_of(path.stat())), 10, "the ledger has its new time")
    replace_unnoticed(path, b"1")
    wait_until(lambda: f"-i{path.stat().st_ino}-" in newest_of(setup, path), 10, "the ledger has its new inode")
    assert len(setup.logged("file")) == 1
    replace_unnoticed(path, b"2")
    setup.wait_logged("file", 2)
    wait_for_new_scan(program)
    assert len(set(setup.logged("file"))) == len(setup.logged("file")) == 2


def test_by_content_a_file_that_an_operator_enqueued_is_known_after_a_touch(
    each_setup: WorkerSetup, shell: CommandLine
) -> None:
    setup, path = each_setup, each_setup.inbox / "file"
    path.write_bytes(b"1" * 3_000_000)  # more than one reading takes
    shell.run("enqueue", str(path), "--id", "mine", "--set", "producer.identity=content")
    settings = {"producer__rescan_interval": "100ms", "producer__identity": "content"}
    program = setup.worker(role="all", handlers=on_files("on_file"), **settings)
    setup.wait_logged("file", 1)
    path.touch()
    wait_until(lambda: newest_of(setup, path).startswith(signature_of(path.stat())), 10, "the ledger has its new time")
    wait_for_new_scan(program)
    assert setup.logged("file") == ["mine"]


def test_a_file_replaced_before_its_job_runs_is_handled_as_any_changed_one(each_setup: WorkerSetup) -> None:
    """The job is superseded if the file has another job, and otherwise it runs; the file is deleted either way."""
    setup = each_setup
    for name in ("known", "unknown"):
        path = setup.inbox / name
        path.write_bytes(b"1")
        enqueue_with_inode(setup, path, name)
        replace_unnoticed(path, b"2")
    enqueue_with_inode(setup, setup.inbox / "known", "newer")
    worker = setup.worker(count=1, handlers=on_files("on_file"), worker__after__completed="delete")
    setup.wait_for(State.COMPLETED, ["known", "unknown", "newer"])
    assert sorted(setup.logged("file")) == ["newer", "unknown"]
    assert setup.census().counters["superseded"] == 1
    assert worker.stop() == 0
    assert list(setup.inbox.iterdir()) == []


def test_a_file_replaced_while_it_is_processed_is_not_deleted(each_setup: WorkerSetup) -> None:
    setup, path = each_setup, each_setup.inbox / "file"
    path.write_bytes(b"1")
    enqueue_with_inode(setup, path, "old")
    worker = setup.worker(count=1, worker__after__completed="delete", handlers=on_files("on_file_after_gate"))
    setup.wait_logged("start", 1)
    replace_unnoticed(path, b"2")
    setup.open_gate()
    assert worker.wait_for("file.kept")["path"] == str(path)
    assert path.read_bytes() == b"2"


def newest_of(setup: WorkerSetup, path: Path) -> str:
    """The signature of the newest version that the ledger has of this file."""
    [entry] = setup.broker.lookup([bytes(path)])
    assert entry is not None
    return entry.versions[0][0]


def enqueue_with_inode(setup: WorkerSetup, path: Path, id: str) -> None:
    """Enqueues a job for this version of the file, as a producer does by default."""
    status = path.stat()
    short, now = signature_of(status), datetime.now(UTC)
    job = file_job(bytes(path), size=1, priority="low", now=now, signature=short, inode=status.st_ino, id=id)
    assert job.version is not None
    setup.broker.enqueue([Entry(job, "low", Version(bytes(path), job.version))])
