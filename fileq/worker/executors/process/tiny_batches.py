"""Tiny tasks in child processes: all tasks of a submit() for one child, in one write.

Waking a child costs more than a tiny task. So while tasks are tiny one child gets many of them, and the pump goes on
with its own work while the child runs them. When the pump wants their outcomes, finish() waits a moment for those that
are missing. When the moment is over it takes back the tasks that the child has not begun, see task_tokens.py, and
returns them: each is for another child. Then each child has one task at most. PausingWaitPolicy decides when tasks
count as tiny.

Time counts from the call of finish(): before it the pump did other work and did not wait for the tasks.

What a kill -9 of a child leaves: outcomes in its stream and tokens of the tasks that it has not begun. Those are
returned by finish() as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

from fileq.handlers.task import Task
from fileq.worker.executors.process.batch_timer import BatchTimer, ThreadTimes
from fileq.worker.executors.process.child_handle import ChildHandle, UnsendableTask
from fileq.worker.executors.process.child_pool import ChildPool
from fileq.worker.executors.wait_policy import WaitPolicy

MAX_WAIT_S = 0.0018  # how long to wait before tasks behind a slow one are given to other children
MAX_BATCH = 16  # tasks for one child at once
TINY_S = 0.0001  # the most that a tiny task takes; a third of it is fileq's own part, two thirds on a busy machine
CHILD_WAKE_S = 0.00015  # how long a child takes from its wake-up until it runs
MAX_BATCH_BYTES = 1 << 15  # of a batch's jobs: the stream has room for them and for what is unread of the last batch


class BatchHost(Protocol):
    """What the executor does for batches."""

    idle: list[ChildHandle]

    def watch_task(self, handle: ChildHandle, *, is_sent: bool) -> None: ...

    def receive(self, handle: ChildHandle) -> None: ...

    def give_to_next_child(self, handle: ChildHandle) -> None: ...


class TinyBatches:
    """A batch is open from send() to finish(). While it is, nothing else may be done with its child."""

    def __init__(self, host: BatchHost, pool: ChildPool, policy: WaitPolicy, max_jobs: int) -> None:
        self._host = host
        self._pool = pool
        self._policy = policy
        self._max_jobs = max_jobs
        self._pump_times = ThreadTimes()
        self._open: list[tuple[ChildHandle, int, int]] = []  # handle, number of the child, number of tasks

    @property
    def is_any_open(self) -> bool:
        return bool(self._open)

    @property
    def are_busy(self) -> bool:
        """Whether finish() would wait for more than the last task of a child. One system call for each child."""
        return any(not handle.is_nearly_done() for handle, _, _ in self._open)

    def close(self) -> None:
        self._pump_times.close()

    def send(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Send these tasks to as few children as possible, while tasks are tiny. Returns those that were not sent."""
        if len(tasks) < 2 or not self._host.idle or not self._policy.should_wait():
            return tasks
        size = -(-len(tasks) // -(-len(tasks) // MAX_BATCH))  # equal parts
        left: list[Task] = []
        for start in range(0, len(tasks), size):
            self._send_batch(tasks[start : start + size], left)
        return left

    def finish(self) -> list[Task]:
        """Wait a moment for the outcomes. Returns the tasks that the children have not begun by then."""
        batches, self._open = self._open, []
        left: list[Task] = []
        until_s = 0.0
        for handle, child, size in batches:
            self._receive_all(handle, child, 0.0)
            if _is_done(handle, child):
                self._policy.record(was_done_in_time=True)
                continue
            timer = BatchTimer(handle.times, self._pump_times)
            until_s = until_s or timer.began_s + MAX_WAIT_S  # one time limit for all batches
            was_done = self._await_batch(handle, child, timer, until_s, left)
            if not was_done:  # watch the time limit of the task that runs: it may end before that of the first task
                self._host.watch_task(handle, is_sent=True)
            limit_s = CHILD_WAKE_S + TINY_S * size
            self._policy.record(was_done_in_time=was_done and timer.spent_s(limit_s) <= limit_s)
        return left

    def _send_batch(self, tasks: Sequence[Task], left: list[Task]) -> None:
        """Send tasks to one child, if it can run them together. Adds those that were not sent to `left`."""
        idle = self._host.idle
        if not idle or sum(len(task.raw) for task in tasks) > MAX_BATCH_BYTES:
            left += tasks
            return
        handle = idle.pop()
        limit = self._max_jobs - handle.jobs_done if self._max_jobs else len(tasks)
        left += tasks[limit:]
        try:
            is_sent = handle.send(tasks[:limit])
        except UnsendableTask:  # one of them: they are sent one by one
            left += tasks[:limit]
            idle.append(handle)
            return
        except BrokenPipeError:
            left += handle.take_back()
            self._host.give_to_next_child(handle)
            return
        self._host.watch_task(handle, is_sent=is_sent)
        self._open.append((handle, handle.child, min(limit, len(tasks))))

    def _await_batch(
        self, handle: ChildHandle, child: int, timer: BatchTimer, until_s: float, left: list[Task]
    ) -> bool:
        """Wait until the child has run its tasks. If time runs out, takes back the tasks that it has not begun, adds
        them to `left` and returns False. Then the child has one task at most."""
        while not handle.wait_until_taken(_whole_ms(until_s)):
            if not timer.is_held_up():
                left += handle.take_back()
                until_s = 0.0
                break
            until_s += MAX_WAIT_S
        # The outcomes of all tasks that it has begun, but for the last one, are in the stream.
        self._receive_all(handle, child, until_s)
        return _is_done(handle, child)

    def _receive_all(self, handle: ChildHandle, child: int, until_s: float) -> None:
        """Receive outcomes until all are there, or none comes until this time."""
        while handle.is_running and handle.child == child and handle.fd in self._pool.by_fd:
            if not handle.is_readable(_whole_ms(until_s) if until_s else 0):
                break
            self._host.receive(handle)


def _is_done(handle: ChildHandle, child: int) -> bool:
    return handle.child != child or not handle.is_running


def _whole_ms(until_s: float) -> int:
    """How long to wait, in the unit of poll(): at least 1 ms before this time, and 0 after it."""
    left_s = until_s - time.monotonic()
    return math.ceil(left_s * 1000) if left_s > 0 else 0
