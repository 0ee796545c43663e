"""The process executor: tasks are cancelled, abandoned, released; the executor is closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Cancelled, Done, Failed, Released
from tests.support.executor_driver import is_readable, result_of
from tests.support.process_executor import Start, control_epoll, marked, process_executors
from tests.support.waiting import wait_until


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


def test_a_cancelled_task_that_stops_ends_as_cancelled(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = driver.run("pid")
    key = driver.submit(f"stop_when_cancelled {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == child  # it was not killed


@pytest.mark.parametrize("raw", ["hang", "loop", "hold_the_gil", "kill_itself"])
def test_a_cancelled_task_that_does_not_stop_is_killed_and_still_cancelled(start: Start, raw: str) -> None:
    driver = start(1, grace_s=0.2)
    driver.run("echo")
    key = driver.submit(raw)
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("echo again") == Done(b"again")


def test_cancelling_after_the_handler_replaced_all_signals_still_ends_it(start: Start) -> None:
    driver = start(1, grace_s=0.2)
    driver.run("replace_signal_handlers")
    key = driver.submit("stop_when_cancelled")
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()


def test_cancelling_a_task_that_was_just_submitted_reaches_it(start: Start) -> None:
    driver = start(1, grace_s=60.0)
    child = driver.run("pid")
    for _ in range(200):
        key = driver.submit("stop_when_cancelled")
        driver.cancel(key)
        assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == child


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_cancelling_a_task_that_has_not_been_read_yet_reaches_it(start: Start, tmp_path: Path, size: int) -> None:
    raw = f"stop_when_cancelled {tmp_path}/begun {'x' * size}"
    driver = start(1, grace_s=60.0)
    child = int(result_of(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    key = driver.submit(raw)
    driver.cancel(key)
    os.kill(child, signal.SIGCONT)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == Done(str(child).encode())


def test_cancelling_a_task_whose_child_has_closed_its_stream_is_no_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoll = control_epoll(monkeypatch)
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    epoll.hides_server = True
    os.kill(child, signal.SIGSTOP)
    key = driver.submit(b"echo " + b"x" * (1 << 20))
    os.kill(child, signal.SIGKILL)
    driver.until(lambda: len(epoll.registered) == 1)  # only the fork server: the stream is at its end
    driver.cancel(key)
    epoll.hides_server = False
    assert driver.outcome(key) == Cancelled()


def test_a_late_cancellation_does_not_stop_the_next_task(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = int(result_of(driver.run("pid")))
    for i in range(20):
        key = driver.submit("echo")
        wait_until(lambda: is_readable(driver.executor))
        driver.cancel(key)  # it has ended, but its outcome is not collected yet
        assert driver.outcome(key) == Cancelled()
        os.kill(child, signal.SIGRTMIN + 7)
        later = driver.submit(f"wait_for {tmp_path}/{i}")
        (tmp_path / str(i)).touch()
        assert driver.outcome(later) == Done(b"not cancelled")


def test_cancelling_an_unknown_task_does_nothing(start: Start) -> None:
    driver = start(1)
    driver.cancel("unknown")
    driver.abandon("unknown")
    assert driver.run("echo") == Done()


def test_an_abandoned_task_is_killed_and_never_collected(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    (child,) = driver.pids("fileq-child")
    driver.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: child not in marked(driver.mark))
    assert key not in driver.ended


def test_an_abandoned_task_that_has_just_ended_is_not_collected_either(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")
    wait_until(lambda: is_readable(driver.executor))
    driver.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    assert key not in driver.ended


def test_a_task_cancelled_before_it_began_and_then_abandoned_is_not_collected(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")  # its child has not started yet
    driver.cancel(key)
    driver.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    assert key not in driver.ended


def test_a_task_that_is_cancelled_before_it_began_never_begins(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("echo again") == Done(b"again")
    assert not (tmp_path / "begun").exists()


def test_the_same_key_can_be_submitted_again(start: Start) -> None:
    driver = start(1)
    for _ in range(3):
        assert driver.outcome(driver.submit("echo", name="same")) == Done()
    driver.abandon(driver.submit("hang", name="same"))
    assert driver.outcome(driver.submit("echo", name="same")) == Done()


def test_quitting_releases_tasks_that_do_not_finish_and_keeps_those_that_do(start: Start, tmp_path: Path) -> None:
    driver = start(4)
    hanging = driver.submit(f"hang {tmp_path}/1")
    stopping = driver.submit(f"stop_when_cancelled {tmp_path}/2")
    failing = driver.submit(f"fail_when_cancelled {tmp_path}/3")
    cancelled = driver.submit(f"hang {tmp_path}/4")
    driver.until(lambda: len(list(tmp_path.iterdir())) == 4)
    driver.cancel(cancelled)
    driver.executor.quit(0.5)
    assert driver.outcome(stopping) == Done(b"stopped")
    assert driver.outcome(failing) == Released()
    assert driver.outcome(cancelled) == Cancelled()
    assert driver.outcome(hanging) == Released()


def test_a_task_that_failed_before_the_worker_stops_stays_failed(start: Start) -> None:
    driver = start(1)
    driver.run("echo")
    key = driver.submit("raise_unpicklable")
    wait_until(lambda: is_readable(driver.executor))
    driver.executor.quit(5.0)
    assert isinstance(driver.outcome(key), Failed)


def test_quitting_without_grace_releases_at_once(start: Start) -> None:
    driver = start(2)
    keys = [driver.submit("loop"), driver.submit("hold_the_gil")]
    driver.executor.quit(0.0)
    driver.turn()
    assert [driver.ended.pop(key, None) for key in keys] == [Released(), Released()]


def test_a_task_that_has_not_begun_is_released_at_once_when_the_worker_stops(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")  # its child has not started yet
    driver.executor.quit(60.0)
    driver.turn()
    assert driver.ended.pop(key) in (Released(), Done())
    late = driver.submit("echo")
    driver.turn()
    driver.until(lambda: late in driver.ended)


def test_closing_kills_what_runs_and_may_be_done_twice(start: Start) -> None:
    driver = start(4)
    for raw in ("loop", "hold_the_gil", "leave session hang", "leave orphan loop"):
        driver.submit(raw)
    driver.until(lambda: len(driver.pids("sleep")) == 3)
    driver.executor.close()
    assert marked(driver.mark) == {}
    driver.executor.close()
