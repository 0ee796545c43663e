"""A database file that is deleted or replaced while in use ends the process: what it still wrote would be lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program
from tests.support.worker_setup import WorkerSetup, is_still_running


def remove(database: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{database}{end}").unlink(missing_ok=True)


def replace(database: Path) -> None:
    os.replace(_new_file(database), database)


def _new_file(database: Path) -> Path:
    other = database.with_suffix(".other")
    other.write_bytes(database.read_bytes())
    return other


def assert_ends(program: Program, database: Path) -> None:
    """With exit code 1, one event and one line for people; the file is not created again."""
    assert program.wait(20) == 1
    message = f"database {database} was removed or replaced while in use; restart fileq"
    lines = program.text().splitlines()
    assert lines[-1] == f"fileq: {message}"
    assert len([line for line in lines if '"event":"broker.removed"' in line]) == 1
    assert not [line for line in lines if "Traceback" in line or "worker.failed" in line]


@pytest.mark.parametrize("how", [remove, replace])
@pytest.mark.parametrize("role", ["worker", "producer", "all"])
def test_an_idle_process_ends(role: str, how: Callable[[Path], None], on_sqlite: BrokerSetup) -> None:
    database = Path(str(on_sqlite.settings["sqlite.path"]))
    settings = on_sqlite.all_settings(producer__scan_dir=on_sqlite.inbox)
    with Program(role, cwd=on_sqlite.directory, settings=settings) as program:
        how(database)
        assert_ends(program, database)
    assert database.exists() == (how is replace)


def test_a_worker_ends_its_handlers(sqlite_setup: WorkerSetup) -> None:
    database = Path(str(sqlite_setup.settings["sqlite.path"]))
    sqlite_setup.enqueue("stubborn", "a")
    program = sqlite_setup.worker()
    sqlite_setup.wait_logged("start", 1)
    (line,) = sqlite_setup.handler_log("start")
    remove(database)
    assert_ends(program, database)
    assert not is_still_running(line)


def test_a_run_once_ends_too(sqlite_setup: WorkerSetup) -> None:
    database = Path(str(sqlite_setup.settings["sqlite.path"]))
    sqlite_setup.enqueue("stubborn", "a")
    program = sqlite_setup.worker(str(sqlite_setup.inbox), "--once", wait=False)
    sqlite_setup.wait_logged("start", 1)
    remove(database)
    assert program.wait(20) == 1
    assert program.text().splitlines()[-1].startswith(f"fileq: database {database} was removed")
