"""Runs each task in a child process: crashes are contained, timeouts are enforced, all cores are used.

Each handle keeps one warm child. A message that does not fit into the stream is sent later, and half a message waits in
the inbox for its other half.

Tiny tasks. Waking a child costs more than a tiny task. So while tasks are tiny, submit() sends a bundle of them to one
child in one write, and the pump goes on with its own work while the child runs them. Two bundles may be open, in two
children. A bundle is finished before anything else is done with its child: the pump waits a moment for the outcomes
that are missing, and then takes back the tasks that the child has not begun (TaskTokens), for other children. So the
child then has one task at most. The older bundle is finished by collect() and before a third one is sent, all of them
before tasks are stopped, before one that is not tiny is submitted, and before the end of a child is examined.
PausingWaitPolicy decides when tasks count as tiny. Time counts from the call that finishes a bundle: before it the pump
did other work.

How a task can end without an outcome from its child:
1. The child has ended. The fork server reports it, with the status. The end of the stream alone proves nothing: a
   handler may close the stream and go on. An outcome that the child sent before it ended counts. A task whose token
   the child has not taken did not run: the next child gets it.
2. The task is out of time or memory, or was cancelled and did not stop. The child is killed and replaced at once; if
   it is out of time, a moment after it was asked where its handler is (output_pipe.py). The fork server kills the
   child's descendants.
3. The child wrote an invalid message. It is killed and replaced too.
4. The fork server has ended, and all children with it, or it is frozen. Another one is started.

A child is also replaced between two tasks: when it ends because its last task left it in a state that it can't restore,
and after `max_jobs` tasks. With `max_jobs` there is a spare handle, so that the next task has a warm child at once.

A kill -9 of a child leaves outcomes in its stream and tokens of the tasks that it has not begun, which are given to
other children. A kill -9 of the worker leaves no process running: see fork_server.py.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Sequence

from fileq.core.events import Emit, ignore
from fileq.core.job import ClaimKey
from fileq.core.outcome import Died, Failed, Ran, Task, TaskOutcome, timed_out
from fileq.core.settlement import StopRequest
from fileq.core.units import format_size
from fileq.worker.executors.process.child_handle import (
    NEVER_S,
    BundleTimer,
    ChildHandle,
    InvalidMessage,
    ThreadTimes,
    UnsendableTask,
)
from fileq.worker.executors.process.child_pool import ChildPool
from fileq.worker.executors.process.descendants import memory_of
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import CANCEL_GRACE_S, PausingWaitPolicy, WaitPolicy

MAX_WAIT_S = 0.0018  # how long to wait before tasks behind a slow one are given to other children
OPEN_MAX = 2  # bundles: while the pump decides on the outcomes of one, the other one runs
MAX_BUNDLE = 16  # tasks for one child at once
TINY_S = 0.0001  # the most that a tiny task takes; a third of it is fileq's own part, two thirds on a busy machine
CHILD_WAKE_S = 0.00015  # how long a child takes from its wake-up until it runs
MAX_BUNDLE_BYTES = 1 << 15  # of a bundle's jobs: the stream has room for them and for what is unread of the last one
WAKE_EVERY_S = 0.1  # while a task that should stop still runs
CHECK_MEMORY_EVERY_S = 0.2


class ProcessExecutor:
    """After construction the handlers are imported. Raises ConfigError if they can't be.

    With `captures_output`, what handlers print becomes events, and failed outcomes have the end of it. Without it the
    handlers print to the stderr of this process. With `max_jobs`, a child is replaced after that many tasks."""

    def __init__(
        self,
        count: int,
        program: Program,
        *,
        max_memory: int | None = None,
        max_jobs: int = 0,
        emit: Emit = ignore,
        cancel_grace_s: float = CANCEL_GRACE_S,
        captures_output: bool = False,
        wait_policy: WaitPolicy | None = None,
    ) -> None:
        self._max_memory = max_memory
        self._cancel_grace_s = cancel_grace_s
        self._max_jobs = max_jobs
        self._handles = [ChildHandle() for _ in range(count + 1 if max_jobs else count)]
        self.idle: list[ChildHandle] = []  # ready and without a task; the last used, with warm caches, is used first
        self._ended: list[tuple[Task, TaskOutcome]] = []
        self._is_quitting = self._is_closed = False
        self._due_s = 0.0  # a lower bound for the time of the next timed work
        self._memory_check_s = NEVER_S
        self._pool = ChildPool(self._handles, program, emit, captures_output=captures_output)
        self._policy = wait_policy or PausingWaitPolicy()
        self._pump_times = ThreadTimes()
        self._bundles: list[tuple[ChildHandle, int, int]] = []  # open ones: handle, number of the child, of tasks

    def fileno(self) -> int:
        return self._pool.epoll.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        while len(self._bundles) >= OPEN_MAX:
            self._finish_bundles(1)
        if left := tasks if self._is_quitting else self._send_bundles(tasks):
            self._finish_bundles()
        for task in left:
            self._submit_one(task)

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        if waits or self._is_next_done():
            self._finish_bundles(None if waits and for_all else 1)
            while self._bundles and self._is_next_done():
                self._finish_bundles(1)
            self._receive_all()
            if self._due_s <= (now_s := time.monotonic()):
                self._finish_bundles()
                self._do_due_work(now_s)
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        if self._ended or self._bundles:
            return 0.0  # the descriptor may not be readable
        return None if self._due_s == NEVER_S else self._due_s

    def cancel(self, key: ClaimKey) -> None:
        self._finish_bundles()
        for handle in _handles_of(key, self._handles):
            self._request_stop(handle, StopRequest.CANCEL, self._cancel_grace_s)

    def abandon(self, key: ClaimKey) -> None:
        self._finish_bundles()
        for handle in _handles_of(key, self._handles):
            is_running = handle.is_running
            handle.begin_next()
            if is_running:
                self._replace(handle)
        self._ended = [(task, outcome) for task, outcome in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        self._finish_bundles()
        self._receive_all()  # tasks that ended before this keep their outcome
        self._is_quitting = True
        self._pool.stop()
        for handle in self._handles:
            if handle.task is not None:
                is_first = handle.stop_request is StopRequest.NONE
                self._request_stop(handle, StopRequest.QUIT if is_first else handle.stop_request, grace_s)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._pool.close()
            self._pump_times.close()

    # tasks

    def _receive_all(self) -> None:
        pool, in_bundles = self._pool, [handle for handle, _, _ in self._bundles]
        for fd, event in pool.epoll.poll(0, len(self._handles) + 2):
            handle = pool.by_fd.get(fd)
            if handle is not None:
                if event & select.EPOLLOUT:
                    pool.watch(handle, is_writing=not handle.flush())
                if event & ~select.EPOLLOUT and handle not in in_bundles:
                    self._receive(handle)
            elif fd == pool.server_fd:  # else the stream of a child that was replaced since the poll
                self._receive_from_server()

    def _receive_from_server(self) -> None:
        self._finish_bundles()  # _on_child_end() expects one task at most
        for handle, cause in self._pool.receive():
            self._on_child_end(handle, cause)
        self._due_s = 0.0

    def _submit_one(self, task: Task) -> None:
        if self.idle:
            self._start(self.idle.pop(), task)
            return
        # It starts when the child is ready, and its timeout counts from then.
        handle = next(handle for handle in self._handles if handle.task is None)
        handle.task = task
        if self._is_quitting:
            self._request_stop(handle, StopRequest.QUIT, 0.0)

    def _start(self, handle: ChildHandle, task: Task) -> None:
        try:
            is_sent = handle.send([task])
        except BrokenPipeError:
            self._give_to_next_child(handle)
            return
        except UnsendableTask as error:
            self._ended.append((task, Failed(str(error), "UnsendableTask", is_permanent=True, is_sample=False)))
            handle.begin_next()
            self.idle.append(handle)
            return
        self._watch_task(handle, is_sent=is_sent)

    def _watch_task(self, handle: ChildHandle, *, is_sent: bool) -> None:
        """Have the task of this child end in time and within its memory."""
        if handle.kill_at_s < self._due_s:
            self._due_s = handle.kill_at_s
        if self._max_memory is not None and self._memory_check_s == NEVER_S:
            self._memory_check_s = time.monotonic() + CHECK_MEMORY_EVERY_S
            self._due_s = min(self._due_s, self._memory_check_s)
        if not is_sent:
            self._pool.watch(handle, is_writing=True)

    def _request_stop(self, handle: ChildHandle, request: StopRequest, grace_s: float) -> None:
        if not handle.is_running:
            handle.finish(request, Died("never began"), self._ended)
            return
        if not handle.request_stop(request, time.monotonic() + grace_s):
            self._pool.watch(handle, is_writing=True)
        self._due_s = min(self._due_s, handle.kill_at_s, time.monotonic() + WAKE_EVERY_S)

    def _receive(self, handle: ChildHandle) -> None:
        was_ready, had_task = handle.is_ready, handle.is_running
        try:
            handle.receive(self._ended)
        except BlockingIOError:
            return  # the event was for the previous child, whose descriptor number this one got
        except EOFError:
            self._pool.unwatch(handle)  # the fork server reports whether and how the child ended
            self._due_s = 0.0  # if it is not frozen
            return
        except InvalidMessage:
            self._kill_and_finish(handle, Died("wrote something that is no outcome"))
            return
        if handle.task is not None:
            if not was_ready and handle.is_ready:
                self._start(handle, handle.task)
        elif had_task and handle.jobs_done == self._max_jobs:
            self._replace(handle)
        elif had_task or (handle.is_ready and not was_ready):
            self.idle.append(handle)

    def _kill_and_finish(self, handle: ChildHandle, ran: Ran) -> None:
        left = handle.take_back() if handle.queued else []
        while handle.is_running:
            handle.output_is_left = True  # perhaps: its last words count
            handle.finish(handle.stop_request, ran, self._ended)
        self._replace(handle)
        for task in left:
            self._submit_one(task)

    # tiny tasks

    def _send_bundles(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Send these tasks to as few children as possible, while tasks are tiny. Returns those that were not sent."""
        if len(tasks) < 2 or not self.idle or not self._policy.should_wait():
            return tasks
        size = -(-len(tasks) // -(-len(tasks) // MAX_BUNDLE))  # equal parts
        left: list[Task] = []
        for start in range(0, len(tasks), size):
            self._send_bundle(tasks[start : start + size], left)
        return left

    def _is_next_done(self) -> bool:
        """Whether to finish the oldest bundle would take no time."""
        return not self._bundles or self._bundles[0][0].is_nearly_done()

    def _finish_bundles(self, count: int | None = None) -> None:
        """The oldest ones, or all. Waits a moment for the outcomes. The tasks that the children have not begun by then
        are given to others."""
        bundles = self._bundles[:count]
        if not bundles:
            return
        del self._bundles[:count]
        left: list[Task] = []
        until_s = 0.0
        for handle, child, size in bundles:
            self._receive_from(handle, child, 0.0)
            if _is_done(handle, child):
                self._policy.record(was_done_in_time=True)
                continue
            timer = BundleTimer(handle.times, self._pump_times)
            until_s = until_s or timer.began_s + MAX_WAIT_S  # one time limit for all bundles
            was_done = self._await_bundle(handle, child, timer, until_s, left)
            if not was_done:  # watch the time limit of the task that runs: it may end before that of the first task
                self._watch_task(handle, is_sent=True)
            limit_s = CHILD_WAKE_S + TINY_S * size
            self._policy.record(was_done_in_time=was_done and timer.spent_s(limit_s) <= limit_s)
        for task in left:
            self._submit_one(task)

    def _send_bundle(self, tasks: Sequence[Task], left: list[Task]) -> None:
        """Send tasks to one child, if it can run them together. Adds those that were not sent to `left`."""
        idle = self.idle
        if not idle or sum(len(task.raw) for task in tasks) > MAX_BUNDLE_BYTES:
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
            self._give_to_next_child(handle)
            return
        self._watch_task(handle, is_sent=is_sent)
        self._bundles.append((handle, handle.child, min(limit, len(tasks))))

    def _await_bundle(
        self, handle: ChildHandle, child: int, timer: BundleTimer, until_s: float, left: list[Task]
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
        self._receive_from(handle, child, until_s)
        return _is_done(handle, child)

    def _receive_from(self, handle: ChildHandle, child: int, until_s: float) -> None:
        """Receive outcomes until all are there, or none comes until this time."""
        while handle.is_running and handle.child == child and handle.fd in self._pool.by_fd:
            if not handle.is_readable(_whole_ms(until_s) if until_s else 0):
                break
            self._receive(handle)

    # children

    def _on_child_end(self, handle: ChildHandle, cause: str) -> None:
        """The child has ended: take the outcome that it may have sent, else end its task as Died."""
        child = handle.child
        while handle.is_running and handle.fd in self._pool.by_fd and handle.is_readable():
            self._receive(handle)
        if handle.child != child:
            return
        if handle.has_begun() or handle.stop_request is not StopRequest.NONE:
            self._kill_and_finish(handle, Died(cause))
        else:
            self._give_to_next_child(handle)

    def _give_to_next_child(self, handle: ChildHandle) -> None:
        """The child ended before it took the task, so the task did not run and does not count as died."""
        handle.last_number = 0
        handle.kill_at_s = NEVER_S
        self._replace(handle)

    def _replace(self, handle: ChildHandle) -> None:
        if handle in self.idle:
            self.idle.remove(handle)
        self._pool.replace(handle)
        self._due_s = 0.0

    # timed work

    def _do_due_work(self, now_s: float) -> None:
        """End tasks that are out of time or memory, and find out when timed work is due next."""
        watch_s = self._pool.watch_server(now_s)
        if watch_s <= now_s:
            self._receive_from_server()
        wake_s = NEVER_S
        for handle in self._handles:
            if handle.kill_at_s <= now_s:
                self._receive_from(handle, handle.child, 0.0)  # a task that has ended by now is not out of time
            if handle.kill_at_s <= now_s and handle.task is not None:
                if not handle.ask_for_stack(now_s):
                    self._kill_and_finish(handle, timed_out(handle.task.timeout_s))
            elif handle.is_running and handle.stop_request is not StopRequest.NONE:
                handle.wake()
                wake_s = now_s + WAKE_EVERY_S
        if self._memory_check_s <= now_s:
            self._check_memory(now_s)
        kill_at_s = min((handle.kill_at_s for handle in self._handles), default=NEVER_S)
        self._due_s = min(self._pool.do_due_work(now_s), self._memory_check_s, kill_at_s, wake_s, watch_s)

    def _check_memory(self, now_s: float) -> None:
        running = [handle for handle in self._handles if handle.is_running and handle.pid > 0]
        limit = self._max_memory or 0
        for handle in running:
            if (used := memory_of(handle.pid)) > limit:
                error = f"used {used >> 20}MB of memory, more than worker.max_memory, {format_size(limit)}"
                if handle.jobs_done:
                    error += " (earlier jobs in its process may have left some; worker.max_jobs_per_child limits that)"
                self._kill_and_finish(handle, Failed(error, "MemoryLimit"))
        self._memory_check_s = now_s + CHECK_MEMORY_EVERY_S if running else NEVER_S


def _handles_of(key: ClaimKey, handles: Sequence[ChildHandle]) -> list[ChildHandle]:
    return [handle for handle in handles if handle.task is not None and handle.task.key == key]


def _is_done(handle: ChildHandle, child: int) -> bool:
    return handle.child != child or not handle.is_running


def _whole_ms(until_s: float) -> int:
    """How long to wait, in the unit of poll(): at least 1 ms before this time, and 0 after it."""
    left_s = until_s - time.monotonic()
    return math.ceil(left_s * 1000) if left_s > 0 else 0
