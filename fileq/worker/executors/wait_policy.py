"""Decides whether submit() of an executor waits until the batch it submitted has ended.

Waiting pays while tasks are tiny and costs time otherwise. After a batch that was not done in time the policy skips
batches before it tries again, twice as many each time, or for twice as long, up to a limit. No threads, no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_PAUSE_S, MAX_PAUSE_S = 0.002, 0.256
MAX_SKIPS = 31  # the most batches that are skipped between two waits


class WaitPolicy:
    """Starts by waiting. Ask should_wait() once for each batch, and record() each wait."""

    def __init__(self) -> None:
        self._skips = 0
        self._skips_left = 0

    @property
    def is_cautious(self) -> bool:
        """Whether the last wait was too long: then a batch is waited for only if nothing else runs."""
        return self._skips > 0

    def should_wait(self) -> bool:
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def record(self, *, was_done_in_time: bool) -> None:
        self._skips = self._skips_left = 0 if was_done_in_time else min(2 * self._skips + 1, MAX_SKIPS)


class PausingWaitPolicy(WaitPolicy):
    """For waits that stop the pump for about a millisecond when they fail. Such a wait is then tried at most four times
    a second, however small batches are: slow tasks end one by one, so most of their batches have one or two tasks. One
    batch may be late by chance, so the first failure has no consequence."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._pause_s = 0.0
        self._paused_until_s = 0.0
        self._was_late = False

    def should_wait(self) -> bool:
        return not self._pause_s or self._monotonic() >= self._paused_until_s

    def record(self, *, was_done_in_time: bool) -> None:
        was_late, self._was_late = self._was_late, not was_done_in_time
        if was_done_in_time:
            self._pause_s = 0.0
            return
        if not was_late:
            return
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._paused_until_s = self._monotonic() + self._pause_s
