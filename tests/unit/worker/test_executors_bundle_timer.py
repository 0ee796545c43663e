"""How long a bundle takes: the time in which other processes had the cores does not count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.worker.executors.process import child_handle
from fileq.worker.executors.process.child_handle import HELD_UP_MAX_S, BundleTimer, ThreadTimes
from tests.support.waiting import wait_until


class FakeTimes:
    """Times of a thread, in milliseconds."""

    def __init__(self, ran: float = 0.0, waited: float = 0.0, *, is_runnable: bool = True) -> None:
        self.ran, self.waited, self.runnable = ran, waited, is_runnable

    def read(self) -> tuple[int, int]:
        return round(self.ran * 1e6), round(self.waited * 1e6)

    def is_runnable(self) -> bool:
        return self.runnable


class Bundle:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(child_handle.time, "monotonic", lambda: self.now_s)
        self.child, self.pump = FakeTimes(70.0, 30.0), FakeTimes(waited=20.0)
        child: Any = self.child
        pump: Any = self.pump
        self.timer = BundleTimer(child, pump)


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> Bundle:
    return Bundle(monkeypatch)


def test_waits_of_the_child_and_of_the_pump_for_a_core_do_not_count(bundle: Bundle) -> None:
    bundle.now_s += 0.010
    bundle.child.waited += 6.0
    bundle.pump.waited += 3.0
    assert bundle.timer.spent_s(0.002) == pytest.approx(0.001)


def test_the_times_are_not_read_if_little_time_has_passed(bundle: Bundle) -> None:
    bundle.now_s += 0.001
    bundle.child.waited += 6.0
    assert bundle.timer.spent_s(0.002) == pytest.approx(0.001)


def test_two_waits_at_the_same_time_make_no_negative_time(bundle: Bundle) -> None:
    bundle.now_s += 0.010
    bundle.child.waited = bundle.pump.waited = 100.0
    assert bundle.timer.spent_s(0.002) == 0.0


def test_a_child_is_held_up_if_it_could_run_and_did_not(bundle: Bundle) -> None:
    bundle.now_s += 0.002
    assert bundle.timer.is_held_up()
    bundle.child.ran += 1.5
    assert not bundle.timer.is_held_up()


def test_a_handler_that_waits_is_not_held_up(bundle: Bundle) -> None:
    bundle.now_s += 0.002
    bundle.child.runnable = False
    assert not bundle.timer.is_held_up()


def test_the_pump_does_not_wait_long_for_a_child_that_gets_no_core(bundle: Bundle) -> None:
    bundle.now_s += HELD_UP_MAX_S + 0.001
    assert not bundle.timer.is_held_up()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) as started:
        yield started
        started.kill()


def test_the_times_are_those_of_the_kernel(process: subprocess.Popen[bytes]) -> None:
    times = ThreadTimes(process.pid)
    wait_until(lambda: times.is_runnable() and times.read()[0] > 0, what="the process has run")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: not times.is_runnable(), what="the process is stopped")
    process.kill()
    process.wait()
    assert not times.is_runnable()
    assert times.read() == (0, 0)
    times.close()
    times.close()
    assert ThreadTimes().read()[0] > 0
    assert ThreadTimes(-1).read() == (0, 0)
