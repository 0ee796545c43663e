"""The thread executor: outcomes, timeouts, cancelled and abandoned tasks, and the end of its threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from fileq.core.events import ThreadAbandoned
from fileq.core.outcome import Cancelled, Done, Failed, Released
from fileq.worker.executors.protocol import WaitPolicy
from tests.support.executor_driver import key_of
from tests.support.thread_executor import AlwaysWait, NeverWait, Start, handler_threads, thread_executors
from tests.support.waiting import wait_until


@pytest.fixture
def start() -> Iterator[Start]:
    with thread_executors() as start:
        yield start


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """The interpreter switches threads as often as it can, so that many orders of their steps occur."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def test_a_task_comes_back_with_the_outcome_of_its_handler(start: Start) -> None:
    driver = start()
    assert driver.outcome(driver.submit(name="a")) == Done()


def test_tasks_run_in_threads_of_their_own_at_the_same_time(start: Start) -> None:
    driver = start(4)
    keys = [driver.submit(b"hang", name=f"{i}") for i in range(4)]
    driver.until(lambda: len(driver.handlers.begun) == 4)
    driver.handlers.may_end.set()
    assert [driver.outcome(key) for key in keys] == [Done()] * 4


@pytest.mark.usefixtures("_frequent_switches")
@pytest.mark.parametrize("wait_policy", [AlwaysWait(), NeverWait()])
def test_thousands_of_tasks_each_come_back_once(start: Start, wait_policy: WaitPolicy) -> None:
    driver = start(8, wait_policy=wait_policy)
    for bundle in range(500):
        keys = [driver.submit(name=f"{bundle}-{i}") for i in range(8)]
        driver.until(lambda: len(driver.ended) == 8)
        assert sorted(driver.ended) == sorted(keys)
        driver.ended.clear()


def test_whatever_a_handler_raises_is_a_failure_and_its_thread_is_used_again(start: Start) -> None:
    driver = start(1)
    for i in range(3):
        ran = driver.outcome(driver.submit(b"raise", name=f"{i}"))
        assert isinstance(ran, Failed)
        assert ran.kind == "SystemExit"
    assert len(handler_threads()) == 1


def test_at_its_timeout_a_task_fails_and_its_thread_is_left_behind(start: Start) -> None:
    driver = start(1)
    ran = driver.outcome(driver.submit(b"hang", name="slow", timeout_s=0.1))
    assert isinstance(ran, Failed)
    assert (ran.error, ran.kind) == ("timed out after 100ms", "Timeout")
    assert ran.traceback.startswith("Stack at the timeout (most recent call last):\n")
    assert driver.events == [ThreadAbandoned(key_of("slow").slot, "it did not stop in time")]
    assert driver.outcome(driver.submit(name="next")) == Done()
    assert len(handler_threads()) == 2


def test_the_outcome_of_a_thread_that_was_left_behind_is_dropped_and_the_thread_ends(start: Start) -> None:
    driver = start(1)
    driver.outcome(driver.submit(b"wait", name="slow", timeout_s=0.1))
    driver.until(lambda: len(handler_threads()) == 1)
    assert driver.outcome(driver.submit(b"thread", name="slow")) == Done(b"handler")
    assert driver.ended == {}


@pytest.mark.parametrize("wait_policy", [AlwaysWait(), NeverWait()])
def test_threads_are_neither_lost_nor_multiplied_when_tasks_end_just_at_their_timeout(
    start: Start, wait_policy: WaitPolicy
) -> None:
    driver = start(4, wait_policy=wait_policy)
    for bundle in range(50):
        keys = [driver.submit(name=f"{bundle}-{i}", timeout_s=i * 2e-5) for i in range(4)]
        driver.until(lambda: len(driver.ended) == 4)
        assert sorted(driver.ended) == sorted(keys)
        driver.ended.clear()
    driver.until(lambda: len(handler_threads()) == 4)


def test_a_cancelled_task_that_stops_ends_as_cancelled(start: Start) -> None:
    driver = start(1)
    key = driver.submit(b"wait", name="a")
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.events == []


def test_a_cancelled_task_that_does_not_stop_is_left_behind_as_cancelled(start: Start) -> None:
    driver = start(1, grace_s=0.1)
    key = driver.submit(b"hang", name="a")
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert [event.name for event in driver.events] == ["thread.abandoned"]
    assert driver.outcome(driver.submit(name="next")) == Done()


def test_an_abandoned_task_is_never_collected(start: Start) -> None:
    driver = start(1)
    key = driver.submit(b"hang", name="a")
    driver.until(lambda: driver.handlers.begun)
    driver.abandon(key)
    assert driver.outcome(driver.submit(name="a")) == Done()
    driver.handlers.may_end.set()
    driver.until(lambda: len(handler_threads()) == 1)
    assert driver.ended == {}


@pytest.mark.parametrize("wait_policy", [AlwaysWait(), NeverWait()])
def test_an_abandoned_task_that_has_just_ended_is_not_collected_either(start: Start, wait_policy: WaitPolicy) -> None:
    driver = start(1, wait_policy=wait_policy)
    key = driver.submit(name="a")
    wait_until(lambda: driver.executor.next_deadline_s() == 0.0)
    driver.abandon(key)
    assert driver.outcome(driver.submit(name="b")) == Done()
    assert driver.ended == {}
    assert len(handler_threads()) == 1


def test_quitting_releases_tasks_that_do_not_finish_and_keeps_those_that_do(start: Start) -> None:
    driver = start(3)
    hanging, stopping = driver.submit(b"hang", name="hanging"), driver.submit(b"wait", name="stopping")
    failing = driver.submit(b"fail when cancelled", name="failing")
    driver.until(lambda: len(driver.handlers.begun) == 3)
    driver.executor.quit(0.3)
    assert driver.outcome(stopping) == Done(b"cancelled")
    assert driver.outcome(failing) == Released()
    assert driver.outcome(hanging) == Released()


def test_closing_ends_every_thread_it_can_and_may_be_done_twice(start: Start) -> None:
    driver = start(3)
    driver.submit(b"hang", name="a")
    driver.submit(b"wait", name="b")
    driver.until(lambda: len(driver.handlers.begun) == 2)
    driver.executor.close()
    driver.executor.close()
    wait_until(lambda: len(handler_threads()) == 1)
    assert driver.closed == [True]


def test_a_thread_that_outlives_the_executor_does_not_write_to_a_reused_descriptor(start: Start) -> None:
    driver = start(1)
    driver.submit(b"hang", name="a")
    driver.until(lambda: driver.handlers.begun)
    driver.executor.close()
    fd = os.eventfd(0, os.EFD_NONBLOCK)  # most likely gets the number of the executor's descriptor
    driver.handlers.may_end.set()
    wait_until(lambda: not handler_threads())
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)


def test_a_task_that_is_given_up_before_it_began_never_runs(start: Start) -> None:
    driver = start(1)
    driver.submit(b"hang", name="first")
    driver.until(lambda: driver.handlers.begun == ["first"])
    driver.submit(name="second")
    driver.abandon("second")
    driver.handlers.may_end.set()
    driver.until(lambda: "first" in driver.ended)
    driver.submit(name="third")
    driver.until(lambda: "third" in driver.ended)
    assert driver.handlers.begun == ["first", "third"]
