"""Several worker processes move files of equal names to one directory. The installed program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fileq.core.job import State
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files

ROOTS, NAMES, PROCESSES, SLOTS = 50, 8, 3, 4


def contents_of(directory: Path) -> list[str]:
    return sorted(path.read_text() for path in directory.rglob("*") if path.is_file())


def test_files_of_equal_names_that_several_workers_move_are_all_kept(setup: WorkerSetup) -> None:
    roots = [setup.directory / f"root-{n}" for n in range(ROOTS)]
    contents = []
    for root in roots:
        root.mkdir()
    for name in range(NAMES):
        for root in roots:  # files of equal names come next to each other
            contents.append(f"{root.name}:{name}")
            (root / f"{name}.txt").write_text(contents[-1])
            setup.enqueue_file(root / f"{name}.txt", contents[-1])
    done = setup.directory / "done"
    settings: dict[str, Any] = {
        "count": SLOTS,
        "handlers": on_files("on_file", isolation="thread"),
        "worker__after__completed": f"move:{done}",
        "allowed_roots": f"[{', '.join(map(str, roots))}]",
    }
    setup.broker.pause("low")
    for _ in range(PROCESSES):
        setup.worker(wait=False, **settings)
    wait_until(lambda: len(setup.broker.workers()) == PROCESSES * SLOTS, 60)
    setup.broker.resume("low")
    setup.wait_for(State.COMPLETED, contents, 60)
    wait_until(lambda: not any(map(os.listdir, roots)), 60)
    assert contents_of(done) == sorted(contents)
