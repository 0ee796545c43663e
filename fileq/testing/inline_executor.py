"""Runs tasks in the calling thread, at once: monkeypatches, fixtures and debuggers of a test work as usual."""

from __future__ import annotations

from collections.abc import Sequence

from fileq.core.claim import ClaimKey
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import TimedOut
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran, Task
from fileq.testing.handlers import COROUTINE_GRACE_S, LOOP_CLOSE_TIMEOUT_S
from fileq.testing.time_limit import call_within
from fileq.worker.executors.protocol import TaskOutcome, timed_out


class InlineExecutor:
    """Implements Executor. submit() returns when the tasks have ended."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._ended: list[tuple[Task, TaskOutcome]] = []
        self.count = 0  # tasks that ran

    def fileno(self) -> int:
        raise NotImplementedError("an inline executor is never waited for")

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.count += 1
            self._ended.append((task, self._run(task)))

    def collect(self, *, waits: bool = True) -> list[tuple[Task, TaskOutcome]]:
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        return None

    def cancel(self, key: ClaimKey) -> None:
        """Nothing runs while the pump calls this."""

    def abandon(self, key: ClaimKey) -> None:
        self._ended = [(task, outcome) for task, outcome in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        """As cancel()."""

    def close(self) -> None:
        self._routes.loop.close(LOOP_CLOSE_TIMEOUT_S)

    def _run(self, task: Task) -> Ran:
        grace_s = COROUTINE_GRACE_S if self._routes[task.route].is_async else 0.0
        try:
            ran: Ran = call_within(lambda: run_task(task, self._routes, LazyEvent()), task.timeout_s, grace_s=grace_s)
            return ran
        except TimedOut:
            return timed_out(task.timeout_s)
