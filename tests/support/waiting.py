"""Waiting on a condition with a deadline, in place of sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LATE = 0.05  # a condition may be noticed late by this part of the time that it took to come true,
LATE_MAX_S = 0.1  # but not by more: to look every few milliseconds takes CPU time from what the test waits for


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "", *, every_s: float = 0.005) -> T:
    """Returns the first true value of `condition`, called every `every_s` at first and less often after a while; raises
    TimeoutError after `timeout_s`.

    `what` names the condition in the error. Choose a longer `every_s` for a condition that is expensive."""
    start = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - start
        if waited_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(max(every_s, min(LATE_MAX_S, LATE * waited_s)))
    return value
