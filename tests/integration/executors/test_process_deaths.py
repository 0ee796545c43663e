"""The process executor when children die, close their stream, or write invalid messages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Died, Done, Failed
from fileq.worker.executors.process.output_pipe import ChildOutput
from tests.support.executor_driver import is_readable, result_of
from tests.support.process_executor import Start, control_epoll, marked, process_executors
from tests.support.waiting import wait_until


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("segfault", "killed by signal SIGSEGV"),
        ("abort", "killed by signal SIGABRT"),
        ("kill_itself", "killed by signal SIGKILL"),
        ("exit_with 3", "exited with status 3"),
        ("exit_with 0", "exited with status 0"),
    ],
)
def test_the_death_of_a_child_ends_its_own_task_only(start: Start, tmp_path: Path, raw: str, cause: str) -> None:
    driver = start(16)
    others = [driver.submit(f"wait_for {tmp_path}/go") for _ in range(15)]
    assert driver.run(raw) == Died(cause)
    assert driver.run("echo again") == Done(b"again")
    (tmp_path / "go").touch()
    assert [driver.outcome(key) for key in others] == [Done(b"not cancelled")] * 15


def test_the_pump_reads_the_last_words_of_a_child_itself(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads output is too slow: it reads nothing."""
    monkeypatch.setattr(ChildOutput, "read", lambda output: -1)
    driver = start(1, captures_output=True)
    assert driver.run("print_and_exit farewell") == Died("exited with status 3", output="farewell")


def test_a_child_that_is_killed_from_outside_is_noticed_and_replaced(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    os.kill(child, signal.SIGKILL)
    assert driver.outcome(key) == Died("killed by signal SIGKILL")
    assert driver.run("echo again") == Done(b"again")


def test_a_child_that_is_replaced_before_the_fork_server_reported_it_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoll = control_epoll(monkeypatch)
    epoll.hides_server = True
    driver = start(1)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    replaced = driver.pids("fileq-child")
    driver.abandon(key)
    epoll.hides_server = False
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not set(replaced) & marked(driver.mark).keys())


@pytest.mark.parametrize("latest_first", [False, True])
def test_an_outcome_that_was_sent_counts_though_its_child_died_before_it_was_read(
    start: Start, latest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoll = control_epoll(monkeypatch)
    epoll.reports_latest_first = latest_first
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    key = driver.submit("echo in time")
    wait_until(lambda: is_readable(driver.executor))
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in marked(driver.mark))
    assert driver.outcome(key) == Done(b"in time")
    assert driver.run("echo again") == Done(b"again")


def test_a_task_whose_child_was_killed_before_it_read_it_is_given_to_the_next(start: Start) -> None:
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    key = driver.submit("echo unharmed")
    os.kill(child, signal.SIGKILL)
    assert driver.outcome(key) == Done(b"unharmed")


def test_a_task_for_a_child_whose_death_was_not_reported_yet_is_given_to_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoll = control_epoll(monkeypatch)
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    epoll.hides_server = True
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in marked(driver.mark))
    key = driver.submit("echo unharmed")
    epoll.hides_server = False
    assert driver.outcome(key) == Done(b"unharmed")


def test_a_child_that_is_killed_while_idle_is_replaced_and_harms_no_task(start: Start) -> None:
    driver = start(1)
    children = set()
    for _ in range(5):
        child = result_of(driver.run("pid"))
        children.add(child)
        os.kill(int(child), signal.SIGKILL)
        driver.until(lambda: driver.pids("fileq-child") not in ([], [int(child)]))  # noqa: B023
    assert len(children) == 5


def test_a_task_waits_until_a_child_starts_and_failed_starts_do_not_count_against_it(
    start: Start, tmp_path: Path
) -> None:
    driver = start(1, f"threads {tmp_path}/obstacle")
    driver.run("echo")
    (tmp_path / "obstacle").touch()
    os.kill(driver.pids("fileq-child")[0], signal.SIGKILL)
    driver.until(lambda: len(driver.emitted("child.start_failed")) >= 2)
    key = driver.submit("echo at last")
    driver.until(lambda: len(driver.emitted("child.start_failed")) >= 4)
    (tmp_path / "obstacle").unlink()
    assert driver.outcome(key) == Done(b"at last")


def test_a_handler_that_closes_every_descriptor_does_not_count_as_dead(start: Start) -> None:
    driver = start(1)
    key = driver.submit("close_everything loop", timeout_s=0.5)
    assert driver.outcome(key) == Failed("timed out after 500ms", "Timeout")


def test_a_handler_that_closed_every_descriptor_ends_as_died(start: Start) -> None:
    driver = start(1)
    assert driver.run("close_everything") == Died("closed its connection to the worker")
    assert driver.run("echo again") == Done(b"again")


def test_an_outcome_is_never_written_into_a_file_of_the_handler(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    assert driver.run(f"close_and_reopen {tmp_path}/file") == Died("closed its connection to the worker")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("garbage", ["ff" * 64, "00" * 8, "0100000001000000c1", "00000000", "08"])
def test_a_child_that_writes_an_invalid_message_is_killed_or_times_out(start: Start, garbage: str) -> None:
    driver = start(2)
    ran = driver.run(f"write_garbage {garbage}", timeout_s=1.0)
    is_half = len(garbage) < 16
    assert ran == (Failed("timed out after 1s", "Timeout") if is_half else Died("wrote something that is no outcome"))
    assert driver.run("echo again") == Done(b"again")


def test_the_copy_of_a_child_whose_handler_forked_sends_no_outcome(start: Start) -> None:
    driver = start(1)
    child = driver.run("pid")
    assert driver.run("fork_and_return") == Done(b"once")
    assert driver.run("pid") == child
