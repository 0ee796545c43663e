"""What the pump expects of an executor, and whether executors wait for a bundle of tiny tasks.

An executor never raises for what a handler does, and never blocks the pump for more than a few milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from fileq.core.job import ClaimKey
from fileq.core.outcome import Ran, Task, TaskOutcome
from fileq.handlers.context import CancelFlag

Run: TypeAlias = Callable[[Task, CancelFlag], Ran]
CANCEL_GRACE_S = 5.0  # from context.cancelled to the stop by force


class Executor(Protocol):
    """Runs a fixed number of tasks at the same time. Only one thread, the pump's, calls it."""

    def fileno(self) -> int:
        """A descriptor that is readable when collect() has something; can be watched by select and epoll."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start these tasks. The caller never has more tasks submitted than the executor can run.

        Some may have ended when submit() returns. collect() returns those even if fileno() is not readable, and
        next_deadline_s() is then in the past: also while tiny tasks run for which collect() would wait a moment. Call
        collect() soon then: tasks may wait behind one that is not tiny."""

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        """The tasks that have ended since the last call, each exactly once; ends those out of time or memory.

        Without `waits` it leaves tiny tasks alone while their child still works on them. Otherwise it may wait for them
        for a few milliseconds: for all of them, or for those that were submitted first."""

    def next_deadline_s(self) -> float | None:
        """The time, by time.monotonic(), at which collect() must be called even if fileno() is not readable."""

    def cancel(self, key: ClaimKey) -> None:
        """Set context.cancelled of a running task, and stop it by force after a grace; it ends as Cancelled."""

    def abandon(self, key: ClaimKey) -> None:
        """Stop a task by force because its lease is lost; collect() never returns it."""

    def quit(self, grace_s: float) -> None:
        """Set context.cancelled of every task now, and stop by force those that still run after the grace.

        Returns at once; collect() goes on as before. A task ends as Released unless its handler finished."""

    def close(self) -> None:
        """Stop everything: afterwards no child process, no descendant of one and no idle thread is left."""


# Decides whether submit() of an executor waits until the bundle it submitted has ended.
#
# Waiting pays while tasks are tiny and costs time otherwise. After a bundle that was not done in time the policy skips
# bundles before it tries again, twice as many each time, or for twice as long, up to a limit. No threads, no I/O.


FIRST_PAUSE_S, MAX_PAUSE_S = 0.002, 0.256
MAX_SKIPS = 31  # the most bundles that are skipped between two waits


class WaitPolicy:
    """Starts by waiting. Ask should_wait() once for each bundle, and record() each wait."""

    def __init__(self) -> None:
        self._skips = 0
        self._skips_left = 0

    @property
    def is_cautious(self) -> bool:
        """Whether the last wait was too long: then a bundle is waited for only if nothing else runs."""
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
    a second, however small bundles are: slow tasks end one by one, so most of their bundles have one or two tasks. One
    bundle may be late by chance, so the first failure has no consequence."""

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
