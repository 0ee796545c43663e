"""The executor of a worker: passes each task to the process executor or the thread executor, as its route says.
Deliveries of webhooks have threads of their own, so that a slow receiver holds neither a child nor a handler's thread.

Never starts what no route needs: no fork server without process isolation, no threads without thread isolation. For
jobs of fileq itself, which are rare, threads start with the first one.

A job of a type of fileq's own runs only if its record says that fileq has enqueued exactly this job: it acts for fileq,
and any program that may push to a queue can write such a type. The thread that is to run it asks the broker.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fileq.brokers.types import Record
from fileq.config.schema import WorkerSettings
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import Emit, ignore
from fileq.core.job import ClaimKey, decode_or_none
from fileq.core.outcome import Ran, Refused, Released, Task, TaskOutcome
from fileq.core.own_jobs import origin_of
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_ROUTE
from fileq.handlers.context import CancelFlag
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Executor, Run
from fileq.worker.executors.thread import ThreadExecutor

Records: TypeAlias = Callable[[Sequence[str]], list[Record | None]]
_FOREIGN = "refused: another program enqueued this job; types that begin with 'fileq.' are fileq's own"


class ExecutorsByIsolation:
    """Raises ConfigError on construction if the children can't import the handlers. `records` is that of the broker;
    without it no job of fileq's own runs."""

    def __init__(
        self,
        settings: WorkerSettings,
        routes: Routes,
        program: Program,
        *,
        deliver: Run | None = None,
        records: Records | None = None,
        emit: Emit = ignore,
    ) -> None:
        self._routes = routes
        self._records = records
        self._deliver = deliver
        self._emit = emit
        self._executors: dict[str, Executor] = {}
        self._only: Executor | None = None  # the executor, while there is only one
        self._own_routes = {DELIVERY_ROUTE, *(n for n, route in enumerate(routes) if route.is_built_in)}
        self._is_closed = False
        self._epoll = select.epoll()
        self._settings = settings
        needed = {route.isolation for route in routes if not route.is_built_in}
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
                self._add_threads(captures_output=settings.capture_output)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._epoll.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        if self._only is not None and not any(task.route in self._own_routes for task in tasks):
            self._only.submit(tasks)
            return
        # Processes first: submit() to threads may wait until these have run their tasks. The children work meanwhile.
        for isolation in ("process", "thread", "delivery"):
            if wanted := [task for task in tasks if self._routes[task.route].isolation == isolation]:
                self._executor(isolation).submit(wanted)

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        if self._only is not None:
            return self._only.collect(waits=waits, for_all=for_all)
        executors = self._executors.values()
        return [ended for executor in executors for ended in executor.collect(waits=waits, for_all=for_all)]

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

    def _executor(self, isolation: str) -> Executor:
        """Threads that only jobs of fileq itself need start with the first of these."""
        if isolation not in self._executors:
            if isolation == "delivery":
                self._add(isolation, ThreadExecutor(DELIVERIES_MAX, self._run_delivery, emit=self._emit))
            else:
                self._add_threads(captures_output=False)
        return self._executors[isolation]

    def _add_threads(self, *, captures_output: bool) -> None:
        close, count = self._routes.loop.close, self._settings.count
        threads = ThreadExecutor(count, self._run, close_run=close, emit=self._emit, captures_output=captures_output)
        self._add("thread", threads)

    def _add(self, isolation: str, executor: Executor) -> None:
        self._only = executor if not self._executors else None
        self._executors[isolation] = executor
        self._epoll.register(executor.fileno(), select.EPOLLIN)

    def _run(self, task: Task, cancelled: CancelFlag) -> Ran:
        refused = self._refusal(task) if self._routes[task.route].is_built_in else None
        return refused or run_task(self._routes, task, cancelled)

    def _run_delivery(self, task: Task, cancelled: CancelFlag) -> Ran:
        assert self._deliver is not None
        return self._refusal(task) or self._deliver(task, cancelled)

    def _refusal(self, task: Task) -> Refused | Released | None:
        """None for a job that fileq itself has enqueued. While the broker can't be asked, the job goes back."""
        job = decode_or_none(task.raw)
        try:
            [record] = self._records([job.id]) if job is not None and self._records is not None else [None]
        except BrokerUnavailable:
            return Released()
        is_own = job is not None and record is not None and record.origin == origin_of(job)
        return None if is_own else Refused(_FOREIGN, "ForeignJob")
