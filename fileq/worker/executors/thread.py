"""Runs tasks in threads of this process: for handlers that share memory, or are tiny.

A thread can't be stopped from outside. One whose handler ignores context.cancelled when its time is up is left behind
with a warning, and a new thread replaces it. What the old thread returns later is dropped. The thread may finish a
task in the moment in which the pump gives it up. The one that takes the task's token first wins: pop() of a list is
atomic. Threads are daemons, so a kill -9 or an exit of the worker leaves none.

Output. task_output.py finds the task that prints. What a thread prints after it was left behind is still logged.

Tiny tasks. Waking a thread costs more than a tiny task, and so does contention for the GIL, which each write to a file
hands to another thread. So while tasks are tiny submit() wakes one thread for the whole bundle and waits a moment until
that thread has run it. When the moment is over, a thread is woken for every task that has not begun. WaitPolicy
decides which bundles are waited for: with other tasks running, contention makes even a tiny task slow.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import suppress
from queue import SimpleQueue

from fileq.core.events import Emit, ThreadAbandoned, ignore
from fileq.core.job import ClaimKey, decode_or_none
from fileq.core.outcome import Ran, Task, TaskOutcome, timed_out
from fileq.core.settlement import StopRequest, outcome_after
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import failed
from fileq.handlers.output import task_sink, uncaptured
from fileq.handlers.tracebacks import place_of
from fileq.worker.executors import task_output
from fileq.worker.executors.protocol import CANCEL_GRACE_S, Run, WaitPolicy
from fileq.worker.executors.task_output import TaskOutput, with_output

NEVER_S = float("inf")
TINY_S = 0.0001  # a task that takes longer is not tiny
THREAD_WAKE_S = 0.0003  # how long a thread takes from its wake-up until it runs, on a slow machine
MAX_WAIT_S = 0.002  # how long submit() waits for its bundle, or for all other tasks before it
CLOSE_TIMEOUT_S = 1.0
_first_print = threading.Lock()


class _RunningTask:
    """Also the sink of what its handler prints. Costs next to nothing until it prints."""

    __slots__ = ("_emit", "_printed", "cancelled", "deadline_s", "ran", "stop_request", "task", "thread_id", "token")

    def __init__(self, task: Task, deadline_s: float, emit: Emit) -> None:
        self._emit = emit
        self._printed: TaskOutput | None = None
        self.task = task
        self.deadline_s = deadline_s
        self.cancelled = LazyEvent()
        self.stop_request = StopRequest.NONE
        self.token = [True]
        self.thread_id = 0  # of the thread that runs it; 0 before that
        self.ran: Ran | None = None

    def write(self, data: bytes) -> None:
        with uncaptured():  # a listener that prints is not the task
            self._output().write(data)

    def log(self, level: str, logger: str, text: str) -> None:
        with uncaptured():
            self._output().log(level, logger, text)

    def with_output(self, ran: Ran) -> Ran:
        """The outcome with its output if it failed. What is printed later is reported, but not kept."""
        if self._printed is None:
            return ran
        with uncaptured():
            return with_output(ran, self._printed.end())

    def _output(self) -> TaskOutput:
        if self._printed is None:
            with _first_print:  # a coroutine and a thread may print at the same time
                self._printed = self._printed or TaskOutput(self.task, self._emit)
        return self._printed


class ThreadExecutor:
    """Calls `run` from `count` threads at the same time; `close_run` frees what `run` keeps, such as an event loop.

    With `captures_output`, sys.stdout and sys.stderr of this process are replaced until close()."""

    def __init__(
        self,
        count: int,
        run: Run,
        *,
        close_run: Callable[[], None] = lambda: None,
        emit: Emit = ignore,
        cancel_grace_s: float = CANCEL_GRACE_S,
        wait_policy: WaitPolicy | None = None,
        captures_output: bool = False,
    ) -> None:
        self._run = run
        self._close_run = close_run
        self._emit = emit
        self._cancel_grace_s = cancel_grace_s
        self._wait_policy = wait_policy or WaitPolicy()
        self._queued: deque[_RunningTask] = deque()
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # True wakes one thread to take a task, False ends it
        self._signal = FinishSignal(self._queued)
        self._finished: deque[_RunningTask] = deque()
        self._running: dict[ClaimKey, _RunningTask] = {}
        self._ended: list[tuple[Task, TaskOutcome]] = []
        self._next_deadline_s = NEVER_S
        self._is_closed = False
        self._captures_output = captures_output
        if captures_output:
            task_output.install()
        self._threads: set[threading.Thread] = set()
        for _ in range(count):
            self._add_thread()

    def fileno(self) -> int:
        return self._signal.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        is_awaited = self._should_wait()
        now_s = time.monotonic()
        bundle = [_RunningTask(task, now_s + task.timeout_s, self._emit) for task in tasks]
        for running in bundle:
            self._running[running.task.key] = running
            self._next_deadline_s = min(self._next_deadline_s, running.deadline_s)
        self._queued.extend(bundle)
        if is_awaited:
            self._wakes.put(True)
            is_done = self._wait(bundle, now_s + min(MAX_WAIT_S, THREAD_WAKE_S + TINY_S * len(bundle)))
            self._wait_policy.record(was_done_in_time=is_done)
        for _ in range(len(self._queued)):
            self._wakes.put(True)

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        self._signal.clear()  # before the look at _finished, see FinishSignal
        while self._finished:
            running = self._finished.popleft()
            if running.ran is not None and self._running.get(running.task.key) is running:
                self._finish(running, running.ran)
        if self._next_deadline_s <= (now_s := time.monotonic()):
            self._end_overdue(now_s)
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        if self._finished:
            return 0.0  # ended while submit() waited, so the descriptor may not be readable
        return None if self._next_deadline_s == NEVER_S else self._next_deadline_s

    def cancel(self, key: ClaimKey) -> None:
        if running := self._running.get(key):
            self._request_stop(running, StopRequest.CANCEL, self._cancel_grace_s)

    def abandon(self, key: ClaimKey) -> None:
        if running := self._running.pop(key, None):
            running.cancelled.set()
            self._leave_behind(running, "its job was lost")
        self._ended = [(task, outcome) for task, outcome in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        for running in self._running.values():
            is_first = running.stop_request is StopRequest.NONE
            self._request_stop(running, StopRequest.QUIT if is_first else running.stop_request, grace_s)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for running in self._running.values():
            running.cancelled.set()
            with suppress(IndexError):  # it has just ended
                running.token.pop()
        self._running.clear()
        closer = threading.Thread(target=self._close_run, name="closer", daemon=True)
        closer.start()
        threads = list(self._threads)
        self._queued.clear()
        for _ in threads:
            self._wakes.put(False)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in (closer, *threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._signal.close()
        if self._captures_output:
            task_output.uninstall()

    # tasks, in the pump's thread

    def _should_wait(self) -> bool:
        """Whether submit() waits for its tasks. After a failed wait it does so only once all other tasks have ended."""
        policy = self._wait_policy
        if not policy.should_wait():
            return False
        if policy.is_cautious and not self._wait(list(self._running.values()), time.monotonic() + MAX_WAIT_S):
            policy.record(was_done_in_time=False)
            return False
        return True

    def _wait(self, bundle: Iterable[_RunningTask], deadline_s: float) -> bool:
        return self._signal.wait(lambda: all(running.ran is not None for running in bundle), deadline_s)

    def _request_stop(self, running: _RunningTask, request: StopRequest, grace_s: float) -> None:
        running.stop_request = request
        running.cancelled.set()
        running.deadline_s = min(running.deadline_s, time.monotonic() + grace_s)
        self._next_deadline_s = min(self._next_deadline_s, running.deadline_s)

    def _finish(self, running: _RunningTask, ran: Ran) -> None:
        del self._running[running.task.key]
        self._ended.append((running.task, outcome_after(running.stop_request, ran)))

    def _end_overdue(self, now_s: float) -> None:
        for running in [running for running in self._running.values() if running.deadline_s <= now_s]:
            stack = place_of(running.thread_id)  # before the handler is asked to stop
            running.cancelled.set()
            if self._leave_behind(running, "it did not stop in time"):
                self._finish(running, running.with_output(timed_out(running.task.timeout_s, stack)))
        self._next_deadline_s = min((running.deadline_s for running in self._running.values()), default=NEVER_S)

    # threads

    def _leave_behind(self, running: _RunningTask, reason: str) -> bool:
        """Give the task up and replace its thread; False if the task has just ended."""
        try:
            running.token.pop()
        except IndexError:
            return False
        self._emit(_abandoned(running.task, reason))
        self._add_thread()
        return True

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="handler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _next(self) -> _RunningTask | None:
        """Wait for the next task; None when the executor closes."""
        while True:
            try:
                return self._queued.popleft()
            except IndexError:
                if not self._wakes.get():
                    return None

    def _work(self) -> None:
        while (running := self._next()) is not None:
            if not running.token:
                break  # given up before it began: another thread has replaced this one
            task_sink.set(running if self._captures_output else None)
            running.thread_id = threading.get_ident()
            try:
                ran = self._run(running.task, running.cancelled)
            except BaseException as error:
                ran = failed(error)
            task_sink.set(None)
            ran = running.with_output(ran)
            try:
                running.token.pop()
            except IndexError:
                break  # given up: another thread has replaced this one
            running.ran = ran
            self._finished.append(running)
            self._signal.notify()
        self._threads.discard(threading.current_thread())


def _abandoned(task: Task, reason: str) -> ThreadAbandoned:
    job = decode_or_none(task.raw)
    if job is None:
        return ThreadAbandoned(task.key.slot, reason)
    return ThreadAbandoned(task.key.slot, reason, job.id, job.filepath or None, job.type)


# How handler threads signal to the pump that tasks have ended.
#
# While the pump waits inside submit(), a lock wakes it. At all other times a descriptor becomes readable, once for
# any number of tasks that end before the pump clears it. A signal is never lost: the pump clears first and looks for
# ended tasks afterwards, so a task that ends later signals again.


class FinishSignal:
    """`queued` holds the tasks that no thread has taken yet. A pump that waits is woken only when it is empty."""

    def __init__(self, queued: Sized) -> None:
        self._queued = queued
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_raised = False
        self._is_awaited = False
        self._gate = threading.Lock()  # unlocked by a thread to wake the pump that waits
        self._gate.acquire()

    def fileno(self) -> int:
        return self._eventfd

    def notify(self) -> None:
        """A task has ended. Called by any thread."""
        if self._is_awaited:
            # The pump collects after its wait, so the descriptor is not needed.
            if not self._queued:
                with suppress(RuntimeError):  # another thread has unlocked it already
                    self._gate.release()
        elif not self._is_raised:
            self._is_raised = True
            os.eventfd_write(self._eventfd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable. Called by the pump before it looks for ended tasks."""
        # Read before the flag is reset: a thread that notifies between the two finds the flag set and does not write,
        # but its task has ended and the pump finds it. In the other order its write would be read here and its flag
        # would stay set, so that no later thread would write.
        with suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        self._is_raised = False

    def wait(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until is_done(); False if it is not by the deadline, a time by time.monotonic()."""
        self._is_awaited = True
        try:
            while not is_done():
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    return False
                self._gate.acquire(timeout=left_s)
            return True
        finally:
            self._is_awaited = False

    def close(self) -> None:
        os.close(self._eventfd)
