"""A worker is killed between the end of jobs and the moves of their files. The installed program, with every broker."""

from __future__ import annotations

import os
from pathlib import Path

from fileq.core.job import State
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files

FILES, TAKEN_NAMES = 60, 2000


def test_the_file_of_a_job_that_a_reaper_buries_is_moved(each_setup: WorkerSetup) -> None:
    setup = each_setup
    file, failed = setup.inbox / "a.txt", setup.directory / "failed"
    file.write_text("a")
    setup.enqueue_file(file, "a")
    settings = {
        "handlers": on_files("on_file_after_gate"),
        "max_recoveries": 0,
        "worker__after__dead": f"move:{failed}",
    }
    worker = setup.worker(count=1, **settings)
    setup.wait_logged("start", 1)
    worker.kill()
    setup.worker(count=1, **settings)
    setup.wait_for(State.DEAD, ["a"])
    wait_until(lambda: bool(setup.record("a").moved_to))
    assert (os.listdir(failed), file.exists(), list(setup.broker.orders(-1))) == (["a.txt"], False, [])


def slow_directory(directory: Path) -> Path:
    """A directory in which so many names are taken that each move needs some time, so that moves come after jobs."""
    directory.mkdir()
    (directory / "a.txt").touch()
    for n in range(1, TAKEN_NAMES):
        os.link(directory / "a.txt", directory / f"a.{n}.txt")
    return directory


def test_what_a_killed_worker_had_to_move_is_moved_by_another(each_setup: WorkerSetup) -> None:
    setup = each_setup
    done = slow_directory(setup.directory / "done")
    roots = [setup.directory / f"root-{n}" for n in range(FILES)]
    for root in roots:
        root.mkdir()
        (root / "a.txt").write_text(root.name)
        setup.enqueue_file(root / "a.txt", root.name)
    ids = [root.name for root in roots]
    settings = {
        "handlers": on_files("on_file", isolation="thread"),
        "worker__after__completed": f"move:{done}",
        "allowed_roots": f"[{', '.join(map(str, roots))}]",
    }
    worker = setup.worker(count=16, **settings)
    setup.wait_for(State.COMPLETED, ids)
    worker.kill()
    assert [root for root in roots if os.listdir(root)]  # otherwise this test would say nothing
    setup.worker(count=1, **settings)
    wait_until(lambda: not any(map(os.listdir, roots)), 30)
    wait_until(lambda: not list(setup.broker.orders(-1)), 30)
    records = [setup.record(id) for id in ids]
    assert [Path(os.fsdecode(record.moved_to)).read_text() for record in records] == ids
    assert len(os.listdir(done)) == TAKEN_NAMES + FILES
