"""Runs tasks in the calling thread, at once: monkeypatches, fixtures and debuggers of a test work as usual."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fileq.core.job import ClaimKey
from fileq.core.outcome import Ran, Task, TaskOutcome, timed_out
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import TimedOut
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.testing.handlers import COROUTINE_GRACE_S, LOOP_CLOSE_TIMEOUT_S
from fileq.testing.time_limit import call_within


class InlineExecutor:
    """Implements Executor. submit() returns when the tasks have ended.

    What is meant for the test itself, such as Ctrl-C or pytest.fail(), counts as a failed attempt here too, so that the
    pump knows how the task ended; but no other task runs until raise_interruption() has raised it."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._waiting: list[Task] = []
        self._interruption: BaseException | None = None
        self._ended: list[tuple[Task, TaskOutcome]] = []
        self.count = 0  # tasks that ran

    def fileno(self) -> int:
        raise NotImplementedError("an inline executor is never waited for")

    def submit(self, tasks: Sequence[Task]) -> None:
        self._waiting += tasks
        self._run_waiting()

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        self._run_waiting()
        ended, self._ended = self._ended, []
        return ended

    def raise_interruption(self) -> None:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption

    def next_deadline_s(self) -> float | None:
        return None

    def cancel(self, key: ClaimKey) -> None:
        """Nothing runs while the pump calls this."""

    def abandon(self, key: ClaimKey) -> None:
        self._waiting = [task for task in self._waiting if task.key != key]
        self._ended = [(task, outcome) for task, outcome in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        """As cancel()."""

    def close(self) -> None:
        self._routes.loop.close(LOOP_CLOSE_TIMEOUT_S)

    def _run_waiting(self) -> None:
        while self._waiting and self._interruption is None:
            task = self._waiting.pop(0)
            self.count += 1
            self._ended.append((task, self._run(task)))

    def _run(self, task: Task) -> Ran:
        raised: list[BaseException] = []

        def run() -> Ran:
            return run_task(self._routes, task, LazyEvent(), on_error=raised.append)

        grace_s = COROUTINE_GRACE_S if self._routes[task.route].is_async else 0.0
        try:
            ran: Ran = call_within(run, task.timeout_s, grace_s=grace_s)
        except TimedOut:
            return timed_out(task.timeout_s)
        self._interruption = next((error for error in raised if is_for_the_test(error)), None)
        return ran


def is_for_the_test(error: BaseException) -> bool:
    """Ctrl-C, pytest.fail() and pytest.skip(). Everything else a handler raises as in a worker."""
    pytest = sys.modules.get("pytest")  # a test may be run by another program
    return isinstance(error, (KeyboardInterrupt, *((pytest.fail.Exception, pytest.skip.Exception) if pytest else ())))
