"""fileq.testing.run(timeout=…) stops every kind of handler, in the process of the test."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fileq
import fileq.testing
from fileq.testing import TimedOut

ENOUGH_S = 20.0  # far from the timeouts below and from the durations of the handlers


def busy(job: fileq.JobView, context: fileq.Context) -> None:
    while True:
        pass


def asleep(job: fileq.JobView, context: fileq.Context) -> None:
    time.sleep(3600)


def locked(job: fileq.JobView, context: fileq.Context) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def starting(job: fileq.JobView, context: fileq.Context) -> None:
    # A stop in the middle of Popen would leave the program behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    with subprocess.Popen(["sleep", "3600"]) as program:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            program.wait()
        finally:
            program.kill()


def stubborn(job: fileq.JobView, context: fileq.Context) -> None:
    for _ in range(3):
        try:
            asleep(job, context)
        except Exception:
            pass
        finally:
            time.sleep(3600)


def swallowing(job: fileq.JobView, context: fileq.Context) -> str:
    try:
        busy(job, context)
    except BaseException:
        return "went on"
    return ""


def translating(job: fileq.JobView, context: fileq.Context) -> None:
    try:
        busy(job, context)
    except BaseException as error:
        raise ValueError("failed") from error


async def never_awaiting(job: fileq.JobView, context: fileq.Context) -> None:
    ends_s = time.monotonic() + 5  # the thread of the event loop outlives run()
    while time.monotonic() < ends_s:
        pass


async def waiting(job: fileq.JobView, context: fileq.Context) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("handler", "place"),
    [
        (busy, "in busy"),
        (asleep, "in asleep"),
        (locked, "in locked"),
        (starting, "in starting"),
        (stubborn, "in asleep"),
        (swallowing, "in busy"),
        (translating, "in busy"),
        (waiting, "in waiting"),
        (never_awaiting, "in never_awaiting"),
    ],
)
def test_a_handler_is_stopped_at_its_timeout_and_the_error_shows_where_it_was(
    handler: Callable[..., Any], place: str
) -> None:
    started_s = time.monotonic()
    with pytest.raises(TimedOut, match="timed out after 200ms") as caught:
        fileq.testing.run(handler, timeout=0.2)
    assert 0.2 <= time.monotonic() - started_s < ENOUGH_S
    assert f"{place}\n" in "".join(traceback.format_exception(caught.value))


def test_outside_the_main_thread_a_handler_runs_to_its_end() -> None:
    def handler(job: fileq.JobView, context: fileq.Context) -> int:
        time.sleep(0.2)
        return 7

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(fileq.testing.run, handler, timeout=0.05).result(ENOUGH_S) == 7


def test_a_handler_that_ends_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = signal.getitimer(signal.ITIMER_REAL)
    before = signal.getsignal(signal.SIGALRM)
    threads = set(threading.enumerate())
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    kept = object()

    def handler(job: fileq.JobView, context: fileq.Context) -> list[Any]:
        asleep(job, context)  # patched
        assert threading.current_thread() is threading.main_thread()
        raise LookupError(kept)

    for _ in range(200):  # timeouts around the end of the handler
        with pytest.raises((LookupError, TimedOut)) as caught:
            fileq.testing.run(handler, timeout=0.0005)
    with pytest.raises(LookupError) as caught:
        fileq.testing.run(handler)
    assert caught.value.args[0] is kept
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == timer[1]
    assert set(threading.enumerate()) <= threads, "no thread is left"
