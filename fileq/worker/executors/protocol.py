"""What the pump asks of an executor. It never raises for what a handler does, and holds the pump up for a
few milliseconds at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fileq.core.claim import ClaimKey
from fileq.core.outcome import Cancelled, Released
from fileq.handlers.task import Ran, Task


class Executor(Protocol):
    """Runs tasks in a fixed number of places. Used by one thread, the pump's."""

    def fileno(self) -> int:
        """Readable when collect() has something; fit for select and epoll together with others."""
        ...

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start each in a free place. There is one: the pump never has more tasks out than places. Some may have ended
        when it returns; collect() has them, whether fileno() tells or not."""
        ...

    def collect(self) -> list[tuple[Task, Ran | Cancelled | Released]]:
        """What has ended since the last call, each task exactly once; also ends what has run out of time or memory."""
        ...

    def next_deadline_s(self) -> float | None:
        """By time.monotonic(): when collect() should be called at the latest, though nothing may be readable."""
        ...

    def cancel(self, key: ClaimKey) -> None:
        """Ask a running task to stop (context.cancelled), and end it by force a little later; it ends as Cancelled."""
        ...

    def abandon(self, key: ClaimKey) -> None:
        """The job is no longer ours: end it by force and say nothing of it again."""
        ...

    def quit(self, grace_s: float) -> None:
        """Set every context.cancelled now, end by force what still runs after the grace; each ends as Released,
        unless it finished by itself meanwhile. Goes on through collect()."""
        ...

    def close(self) -> None:
        """Nothing of it is left running afterwards: no child, no grandchild, no thread it can end."""
        ...
