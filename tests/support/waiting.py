"""Waiting on a condition with a deadline, in place of sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "", *, every_s: float = 0.005) -> T:
    """Returns the first true value of `condition`, called every `every_s`; raises TimeoutError after `timeout_s`.

    `what` names the condition in the error. Choose a longer `every_s` for a condition that is expensive."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(every_s)
    return value
