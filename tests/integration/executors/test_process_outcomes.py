"""The process executor: tasks reach their children and come back as outcomes, whatever their size and content."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Cancelled, Done, Failed
from fileq.worker.executors.process.child_pool import MAX_PENDING_REQUESTS
from tests.support.executor_driver import result_of
from tests.support.process_executor import Start, process_executors


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


def test_a_task_comes_back_with_the_outcome_of_its_handler(start: Start) -> None:
    assert start().run("echo hello") == Done(b"hello")


def test_a_child_is_used_for_many_tasks(start: Start) -> None:
    driver = start(1)
    assert len({driver.run("pid") for _ in range(20)}) == 1


def test_count_tasks_run_at_the_same_time(start: Start, tmp_path: Path) -> None:
    driver = start(4)
    keys = [driver.submit(f"stop_when_cancelled {tmp_path}/{i}") for i in range(4)]
    driver.until(lambda: len(list(tmp_path.iterdir())) == 4)
    for key in keys:
        driver.cancel(key)
        assert driver.outcome(key) == Cancelled()


def test_there_may_be_more_children_than_are_requested_at_once(start: Start) -> None:
    driver = start(MAX_PENDING_REQUESTS + 8)
    driver.until(lambda: len(driver.pids("fileq-child")) == MAX_PENDING_REQUESTS + 8)
    assert driver.run("echo") == Done()


def test_a_result_of_64_kib_comes_back_whole(start: Start) -> None:
    assert start().run("big 65536") == Done(b"x" * 65536)


def test_an_outcome_larger_than_any_buffer_comes_back_whole(start: Start) -> None:
    assert start().run(f"big {8 << 20}") == Done(b"x" * (8 << 20))


def test_an_outcome_too_large_to_send_is_a_failure(start: Start) -> None:
    ran = start().run(f"big {17 << 20}")
    assert isinstance(ran, Failed)
    assert ran.kind == "OutcomeTooLong"


def test_a_task_that_cannot_be_sent_is_a_permanent_failure_and_its_child_runs_the_next(start: Start) -> None:
    driver = start(1)
    for _ in range(2):  # the child is not ready yet, then it is
        ran = driver.outcome(driver.submit_unsendable())
        assert isinstance(ran, Failed)
        assert ran.is_permanent
        assert driver.run("echo next") == Done(b"next")


def test_a_task_larger_than_any_buffer_reaches_its_child_while_others_go_on(start: Start) -> None:
    driver = start(2)
    key = driver.submit(b"size_of " + b"x" * (8 << 20))
    assert driver.run("echo meanwhile") == Done(b"meanwhile")
    assert driver.outcome(key) == Done(str((8 << 20) + 8).encode())


def test_a_child_that_reads_nothing_does_not_block_the_pump(start: Start, tmp_path: Path) -> None:
    driver = start(2)
    other = driver.submit(f"wait_for {tmp_path}/go")
    child = int(result_of(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    stuck = driver.submit(b"size_of " + b"x" * (8 << 20))
    (tmp_path / "go").touch()
    assert driver.outcome(other) == Done(b"not cancelled")
    others = [driver.run("echo still here") for _ in range(20)]
    assert set(others) == {Done(b"still here")}
    os.kill(child, signal.SIGCONT)
    assert isinstance(driver.outcome(stuck), Done)


def test_a_path_that_is_not_utf_8_reaches_the_child_as_it_is(start: Start) -> None:
    assert start().run("echo", path=b"/data/\xff\xfe\n.pdf") == Done(b"/data/\xff\xfe\n.pdf")


def test_an_exception_that_cannot_be_pickled_is_an_ordinary_failure(start: Start) -> None:
    ran = start().run("raise_unpicklable")
    assert isinstance(ran, Failed)
    assert ran.kind == "Unpicklable"


def test_an_error_about_a_name_that_is_not_utf_8_can_be_sent(start: Start) -> None:
    ran = start().run("raise_undecodable")
    assert isinstance(ran, Failed)
    assert ran.kind == "FileNotFoundError"
