"""The process executor: limits of time and memory, and the processes that handlers leave running."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Died, Done, Failed
from tests.support.executor_driver import result_of
from tests.support.process_executor import Start, process_executors


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


@pytest.mark.parametrize("raw", ["loop", "hold_the_gil", "hang", "leave plain hang", "leave orphan hold_the_gil"])
def test_a_task_is_killed_at_its_timeout_whatever_it_does(start: Start, raw: str) -> None:
    driver = start(1)
    assert driver.run(raw, timeout_s=0.3) == Failed("timed out after 300ms", "Timeout")
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: driver.pids("sleep") == [])


@pytest.mark.parametrize("raw", ["sleep_in_c", "hold_the_gil"])
def test_a_call_that_the_request_for_the_stack_ends_has_timed_out_all_the_same(start: Start, raw: str) -> None:
    driver = start(1, captures_output=True)
    ran = driver.run(raw, timeout_s=0.3)
    assert isinstance(ran, Failed)
    assert (ran.error, ran.kind) == ("timed out after 300ms", "Timeout")
    assert f"in {raw}" in ran.traceback
    assert driver.run("echo again") == Done(b"again")


def test_a_timeout_does_not_affect_other_tasks(start: Start, tmp_path: Path) -> None:
    driver = start(16)
    others = [driver.submit(f"wait_for {tmp_path}/go") for _ in range(15)]
    assert driver.run("loop", timeout_s=0.2) == Failed("timed out after 200ms", "Timeout")
    (tmp_path / "go").touch()
    assert [driver.outcome(key) for key in others] == [Done(b"not cancelled")] * 15


def test_the_next_deadline_is_that_of_the_task_that_ends_first(start: Start, tmp_path: Path) -> None:
    driver = start(2)
    driver.until(lambda: driver.executor.next_deadline_s() is None)
    before_s = time.monotonic()
    driver.submit(f"hang {tmp_path}/1", timeout_s=500)
    driver.submit(f"hang {tmp_path}/2", timeout_s=100)
    driver.until(lambda: len(list(tmp_path.iterdir())) == 2)
    deadline_s = driver.executor.next_deadline_s()
    assert deadline_s is not None
    assert before_s + 100 <= deadline_s <= time.monotonic() + 100


@pytest.mark.parametrize("raw", ["use_memory 200", "use_memory_below 200"])
def test_a_task_that_uses_too_much_memory_is_killed(start: Start, raw: str) -> None:
    driver = start(2, max_memory=128 << 20)
    ran = driver.run(raw)
    assert isinstance(ran, Failed)
    assert ran.kind == "MemoryLimit"
    assert ran.error.endswith("MB of memory, more than worker.max_memory, 128MB")
    assert driver.run("echo again") == Done(b"again")
    assert driver.run("use_memory 1", timeout_s=1.0) == Failed("timed out after 1s", "Timeout")


def test_it_is_said_that_earlier_jobs_may_have_left_memory_in_use(start: Start) -> None:
    driver = start(1, max_memory=128 << 20)
    assert driver.run("echo first") == Done(b"first")
    ran = driver.run("use_memory 200")
    assert isinstance(ran, Failed)
    assert "128MB (earlier jobs in its process may have left some; worker.max_jobs_per_child" in ran.error


def test_memory_is_not_checked_while_nothing_runs(start: Start) -> None:
    driver = start(1, max_memory=128 << 20)
    driver.run("echo", timeout_s=0.01)
    driver.until(lambda: driver.executor.next_deadline_s() is None)


@pytest.mark.parametrize("how", ["plain", "session", "orphan", "thread"])
@pytest.mark.parametrize("then", ["", "raise_unpicklable", "segfault", "kill_itself", "abort"])
def test_what_a_handler_leaves_running_is_killed(start: Start, how: str, then: str) -> None:
    driver = start(1)
    ran = driver.run(f"leave {how} {then}")
    assert isinstance(ran, {"": Done, "raise_unpicklable": Failed}.get(then, Died))
    driver.until(lambda: driver.pids("sleep") == [])
    assert driver.run("echo again") == Done(b"again")


@pytest.mark.parametrize("how", ["plain", "session", "orphan", "thread"])
def test_leftovers_of_a_task_that_ended_well_are_gone_before_its_outcome_is_collected(start: Start, how: str) -> None:
    driver = start(1)
    driver.run(f"leave {how}")
    assert driver.pids("sleep") == []


def test_zombies_that_a_handler_leaves_are_reaped(start: Start) -> None:
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    driver.run("leave_zombie")
    assert Path(f"/proc/{child}/task/{child}/children").read_text() == ""
    assert driver.run("pid") == Done(str(child).encode())


def test_the_resource_tracker_of_multiprocessing_is_not_killed(start: Start) -> None:
    driver = start(1)
    trackers = {driver.run(raw) for raw in ("share_memory", "share_memory")}
    assert len(trackers) == 1
    driver.run("leave plain")
    assert driver.pids("sleep") == []
