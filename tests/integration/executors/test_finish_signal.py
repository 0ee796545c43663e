"""The signal of handler threads to the pump, in the orders of steps in which one could get lost."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator

import pytest

from fileq.worker.executors.thread import FinishSignal


@pytest.fixture
def queued() -> list[str]:
    return []


@pytest.fixture
def signal(queued: list[str]) -> Iterator[FinishSignal]:
    signal = FinishSignal(queued)
    yield signal
    signal.close()


def is_readable(signal: FinishSignal) -> bool:
    return bool(select.select([signal], [], [], 0)[0])


def test_any_number_of_notifications_is_cleared_at_once(signal: FinishSignal) -> None:
    assert not is_readable(signal)
    signal.notify()
    signal.notify()
    assert is_readable(signal)
    signal.clear()
    assert not is_readable(signal)
    signal.notify()
    assert is_readable(signal)


def test_a_write_that_comes_late_is_cleared_although_another_came_in_between(
    signal: FinishSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the descriptor would stay readable, and the pump would never rest again."""
    write = os.eventfd_write

    def write_after_another(fd: int, value: int) -> None:
        """The first thread has set the flag; before it writes, the pump clears twice and a second thread notifies."""
        monkeypatch.setattr(os, "eventfd_write", write)
        signal.clear()
        signal.notify()
        signal.clear()
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", write_after_another)
    signal.notify()
    assert is_readable(signal)
    signal.clear()
    assert not is_readable(signal)


def test_a_notification_while_the_pump_clears_does_not_silence_later_ones(
    signal: FinishSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later thread would find the flag set and not write, and the pump would sleep."""
    read = os.eventfd_read

    def read_after_another_notified(fd: int) -> int:
        signal.notify()
        return read(fd)

    signal.notify()
    monkeypatch.setattr(os, "eventfd_read", read_after_another_notified)
    signal.clear()
    assert not is_readable(signal)
    signal.notify()
    assert is_readable(signal)


def test_a_pump_that_waits_is_woken_only_when_no_task_is_queued_and_the_descriptor_stays_silent(
    signal: FinishSignal, queued: list[str]
) -> None:
    answers: list[bool] = []
    begun = threading.Event()
    may_end = threading.Event()

    def is_done() -> bool:
        answers.append(may_end.is_set())
        begun.set()
        return answers[-1]

    queued.append("second")
    pump = threading.Thread(target=signal.wait, args=(is_done, time.monotonic() + 60.0), daemon=True)
    pump.start()
    begun.wait()
    signal.notify()
    pump.join(0.1)
    assert answers == [False], "a task is still queued"
    queued.clear()
    may_end.set()
    signal.notify()
    pump.join(10.0)
    assert answers == [False, True]
    assert not is_readable(signal)


def test_a_wait_ends_at_its_deadline(signal: FinishSignal) -> None:
    assert not signal.wait(lambda: False, time.monotonic() + 0.01)
    signal.notify()
    assert is_readable(signal), "nothing waits any more"
