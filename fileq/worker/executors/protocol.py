"""What the pump expects of an executor.

An executor never raises for what a handler does, and never blocks the pump for more than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from fileq.core.claim import ClaimKey
from fileq.core.outcome import Cancelled
from fileq.handlers.context import CancelFlag
from fileq.handlers.task import Ran, Task

Run: TypeAlias = Callable[[Task, CancelFlag], Ran]
TaskOutcome: TypeAlias = Ran | Cancelled


class Executor(Protocol):
    """Runs a fixed number of tasks at the same time. Only one thread, the pump's, calls it."""

    def fileno(self) -> int:
        """A descriptor that is readable when collect() has something; can be watched by select and epoll."""
        ...

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start these tasks. The caller never has more tasks submitted than the executor can run.

        Some may have ended when submit() returns. collect() returns those even if fileno() is not readable, and
        next_deadline_s() is then in the past: also while tiny tasks run for which collect() would wait a moment. Call
        collect() soon then: tasks may wait behind one that is not tiny."""
        ...

    def collect(self, *, waits: bool = True) -> list[tuple[Task, TaskOutcome]]:
        """The tasks that have ended since the last call, each exactly once; ends those out of time or memory.

        Without `waits` it leaves tiny tasks alone while their child still works on them. Otherwise it may wait for them
        for a few milliseconds."""
        ...

    def next_deadline_s(self) -> float | None:
        """The time, by time.monotonic(), at which collect() must be called even if fileno() is not readable."""
        ...

    def cancel(self, key: ClaimKey) -> None:
        """Set context.cancelled of a running task, and stop it by force after a grace; it ends as Cancelled."""
        ...

    def abandon(self, key: ClaimKey) -> None:
        """Stop a task by force because its lease is lost; collect() never returns it."""
        ...

    def quit(self, grace_s: float) -> None:
        """Set context.cancelled of every task now, and stop by force those that still run after the grace.

        Returns at once; collect() goes on as before. A task ends as Released unless its handler finished."""
        ...

    def close(self) -> None:
        """Stop everything: afterwards no child process, no descendant of one and no idle thread is left."""
        ...
