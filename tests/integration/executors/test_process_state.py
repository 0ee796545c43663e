"""What a task leaves changed in its child: the next task finds the state of the start, or another child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fileq.core.outcome import Done
from tests.support.executor_driver import result_of
from tests.support.leaking_tasks import LOADER
from tests.support.process_executor import ProcessDriver, Start, process_executors

RESTORED = (
    *("directory", "removed_directory", "umask", "environment", "other_environment", "cleared_environment", "zone"),
    *("handlers", "mask", "alarm", "timer", "descriptors", "stream", "memory_stream", "ended_thread"),
)
NEEDS_PATH = ("removed_directory", "descriptors", "stream")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


def look(driver: ProcessDriver) -> tuple[int, dict[str, Any]]:
    """The pid of the child, and the state that a handler in it finds."""
    found = msgspec.json.decode(result_of(driver.run("look")))
    return found["pid"], found["state"]


@pytest.mark.parametrize("captures_output", [False, True])
def test_the_next_task_in_the_same_child_finds_the_state_of_the_start(
    start: Start, tmp_path: Path, captures_output: bool
) -> None:
    driver = start(1, loader=LOADER, captures_output=captures_output)
    before = look(driver)
    for leak in RESTORED:
        argument = f" {tmp_path / leak}" if leak in NEEDS_PATH else ""
        assert driver.run(leak + argument) == Done(), leak
        assert look(driver) == before, leak
    assert driver.emitted("child.replaced") == []


def test_what_a_task_prints_does_not_land_in_a_file_of_the_task_before(start: Start, tmp_path: Path) -> None:
    driver = start(1, loader=LOADER)
    driver.run(f"descriptors {tmp_path}/descriptors")
    look(driver)
    assert (tmp_path / "descriptors").read_text() == "of this job\nwithout a newline"
    driver.run(f"stream {tmp_path}/stream")
    look(driver)
    assert (tmp_path / "stream").read_text() == "of this job\n"


@pytest.mark.parametrize(
    ("leak", "reason"),
    [
        ("thread", "its handler left threads running"),
        ("limits", "its handler changed resource limits"),
        ("core_limit", "its handler changed resource limits"),
        ("closed_stream", "its handler closed standard streams or other descriptors"),
        pytest.param("user", "its handler changed the user or the group", marks=needs_root),
    ],
)
def test_a_child_whose_state_can_not_be_restored_is_replaced_and_no_task_is_lost(
    start: Start, leak: str, reason: str
) -> None:
    driver = start(1, loader=LOADER)
    pid, state = look(driver)
    for _ in range(3):
        # The second one is perhaps sent to the old child, which does not read it.
        assert driver.run(leak) == Done()
        new_pid, new_state = look(driver)
        assert (new_pid != pid, new_state) == (True, state)
        pid = new_pid
    assert [msgspec.structs.asdict(event) for event in driver.emitted("child.replaced")] == [{"reason": reason}] * 3
    assert driver.emitted("child.start_failed") == []


def test_a_child_is_replaced_after_max_jobs_and_the_next_task_has_a_warm_child(start: Start) -> None:
    driver = start(1, loader=LOADER, max_jobs=3)
    driver.until(lambda: len(driver.pids("fileq-child")) == 2)
    pids = [look(driver)[0] for _ in range(12)]
    counts = {pid: pids.count(pid) for pid in pids}
    assert max(counts.values()) == 3
    assert len(counts) >= 4


def test_children_are_kept_without_max_jobs(start: Start) -> None:
    driver = start(1, loader=LOADER)
    assert len({look(driver)[0] for _ in range(12)}) == 1
