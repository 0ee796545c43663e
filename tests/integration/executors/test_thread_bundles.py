"""The thread executor with tiny tasks: submit() waits for a whole bundle, and stops waiting when that does not pay."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator

import pytest

from fileq.core.outcome import Done
from fileq.worker.executors import thread
from fileq.worker.executors.protocol import WaitPolicy
from tests.support.executor_driver import is_readable
from tests.support.thread_executor import AlwaysWait, NeverWait, NotingPolicy, Start, thread_executors
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


def test_a_tiny_bundle_is_run_by_one_thread_and_has_ended_when_submit_returns(start: Start) -> None:
    driver = start(4, wait_policy=AlwaysWait())
    names = [f"together-{n}" for n in range(8)]

    def is_run_by_one_thread() -> bool:
        """False when the machine was so busy that submit() stopped waiting."""
        driver.submit_together(**dict.fromkeys(names, b"thread id"))
        driver.collect()
        threads = set(map(str, driver.ended.values()))
        has_ended = sorted(driver.ended) == names
        driver.until(lambda: len(driver.ended) == 8)
        driver.ended.clear()
        return has_ended and len(threads) == 1

    wait_until(is_run_by_one_thread)


def test_submit_returns_as_soon_as_the_last_task_of_a_tiny_bundle_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(4)
    monkeypatch.setattr(thread, "MAX_WAIT_S", 3600.0)
    monkeypatch.setattr(thread, "THREAD_WAKE_S", 3600.0)
    for bundle in range(100):
        driver.submit_together(**{f"{bundle}-{n}": b"" for n in range(8)})
        assert len(driver.executor.collect()) == 8


def test_a_task_that_ended_inside_submit_is_due_though_the_descriptor_is_not_readable(start: Start) -> None:
    driver = start(1, wait_policy=AlwaysWait())

    def has_ended_silently() -> bool:
        name = driver.submit()
        is_due = driver.executor.next_deadline_s() == 0.0
        is_silent = not is_readable(driver.executor)
        assert driver.outcome(name) == Done()
        return is_due and is_silent

    wait_until(has_ended_silently)
    assert driver.executor.next_deadline_s() != 0.0


def test_a_slow_task_in_a_bundle_blocks_neither_the_other_tasks_nor_the_pump(start: Start) -> None:
    driver = start(4, wait_policy=AlwaysWait())
    driver.submit_together(slow=b"hang", quick=b"", slower=b"hang", quicker=b"")
    wait_until(lambda: {"slow", "quick", "slower", "quicker"} <= set(driver.handlers.begun))  # without collect()
    driver.until(lambda: {"quick", "quicker"} <= driver.ended.keys())
    driver.handlers.may_end.set()
    driver.until(lambda: {"slow", "slower"} <= driver.ended.keys())


def test_submit_waits_ever_less_often_while_a_task_is_slow_and_again_when_all_are_tiny(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = NotingPolicy()
    driver = start(2, wait_policy=policy)
    driver.submit(b"hang", name="slow")
    for n in range(63):
        driver.outcome(driver.submit(name=f"beside-{n}"))
    assert policy.waits == [False] * 6, "for the first bundle, then after 1, 3, 7, 15 and 31 bundles without a wait"
    driver.handlers.may_end.set()
    driver.outcome("slow")
    monkeypatch.setattr(thread, "MAX_WAIT_S", 3600.0)
    monkeypatch.setattr(thread, "THREAD_WAKE_S", 3600.0)
    policy.waits.clear()
    for n in range(64):
        driver.outcome(driver.submit(name=f"alone-{n}"))
    assert len(policy.waits) > 32
    assert all(policy.waits)


@pytest.mark.parametrize("wait_policy", [AlwaysWait(), NeverWait()])
def test_a_task_that_ends_after_submit_makes_the_descriptor_readable(start: Start, wait_policy: WaitPolicy) -> None:
    driver = start(1, wait_policy=wait_policy)
    driver.submit(b"hang")
    assert not is_readable(driver.executor)
    driver.handlers.may_end.set()
    assert select.select([driver.executor], [], [], 10.0)[0]


@pytest.mark.usefixtures("_frequent_switches")
def test_a_task_that_ends_just_when_submit_stops_waiting_is_not_missed(start: Start) -> None:
    driver = start(2, wait_policy=AlwaysWait())
    for _ in range(300):
        name = driver.submit(b"about as long")
        is_due = driver.executor.next_deadline_s() == 0.0
        assert is_due or select.select([driver.executor], [], [], 10.0)[0]
        assert driver.outcome(name) == Done()
