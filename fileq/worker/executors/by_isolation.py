"""The executor of a worker: passes each task to the process executor or the thread executor, as its route says.

Never starts what no route needs: no fork server without process isolation, no threads without thread isolation.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from fileq.config import WorkerSettings
from fileq.core.claim import ClaimKey
from fileq.core.events import Emit, ignore
from fileq.handlers.context import CancelFlag
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.program import Program
from fileq.worker.executors.protocol import Executor, TaskOutcome
from fileq.worker.executors.thread import ThreadExecutor


class ExecutorsByIsolation:
    """Raises ConfigError on construction if the children can't import the handlers."""

    def __init__(
        self,
        settings: WorkerSettings,
        routes: Routes,
        program: Program,
        *,
        emit: Emit = ignore,
    ) -> None:
        self._routes = routes
        self._executors: dict[str, Executor] = {}
        self._only: Executor | None = None  # if all routes have the same isolation
        self._is_closed = False
        self._epoll = select.epoll()
        needed = {route.isolation for route in routes}
        try:
            if "process" in needed:
                children = ProcessExecutor(
                    settings.count,
                    program,
                    max_memory=settings.max_memory,
                    max_jobs=settings.max_jobs_per_child,
                    emit=emit,
                    captures_output=settings.capture_output,
                )
                self._add("process", children)
            if "thread" in needed:
                threads = ThreadExecutor(
                    settings.count,
                    self._run,
                    close_run=routes.loop.close,
                    emit=emit,
                    captures_output=settings.capture_output,
                )
                self._add("thread", threads)
        except BaseException:
            self.close()
            raise
        if len(self._executors) == 1:
            (self._only,) = self._executors.values()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        if self._only is not None:
            self._only.submit(tasks)
            return
        # In the order of construction, processes first: a wait for threads, which share this interpreter, is longer.
        for isolation, executor in self._executors.items():
            if wanted := [task for task in tasks if self._routes[task.route].isolation == isolation]:
                executor.submit(wanted)

    def collect(self) -> list[tuple[Task, TaskOutcome]]:
        if self._only is not None:
            return self._only.collect()
        return [ended for executor in self._executors.values() for ended in executor.collect()]

    def next_deadline_s(self) -> float | None:
        deadlines_s = [executor.next_deadline_s() for executor in self._executors.values()]
        return min((deadline_s for deadline_s in deadlines_s if deadline_s is not None), default=None)

    def cancel(self, key: ClaimKey) -> None:
        for executor in self._executors.values():
            executor.cancel(key)

    def abandon(self, key: ClaimKey) -> None:
        for executor in self._executors.values():
            executor.abandon(key)

    def quit(self, grace_s: float) -> None:
        for executor in self._executors.values():
            executor.quit(grace_s)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for executor in self._executors.values():
                executor.close()
            self._epoll.close()

    def _add(self, isolation: str, executor: Executor) -> None:
        self._executors[isolation] = executor
        self._epoll.register(executor.fileno(), select.EPOLLIN)

    def _run(self, task: Task, cancelled: CancelFlag) -> Ran:
        return run_task(task, self._routes, cancelled)
