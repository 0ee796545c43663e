"""Runs tasks in threads of this process: for handlers that share memory, or are tiny.

A thread can't be ended from outside. One that ignores context.cancelled when its time is up is left behind, with a
warning, and another takes its place; what it brings later is dropped. Who was faster, the thread that finished or the
pump that gave up, is decided by taking the task's token: a list's pop is atomic.

Waking a thread costs more than a tiny task does, and so does the quarrel of two over the interpreter: each write to a
file lets the other have it. So while tasks are tiny one thread is called for all that came in together, and the pump
waits until they are done, or should be; then every task that has not begun gets a thread of its own. Among quarrelling
threads no task is tiny: so after a batch that was not done in time the pump lets some pass, more each time, and before
it tries again it waits until nothing runs, just as briefly.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from fileq.core.claim import ClaimKey
from fileq.core.events import Emit
from fileq.core.outcome import Cancelled, Released
from fileq.handlers.context import LazyEvent
from fileq.handlers.outcomes import failed
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.program import Run
from fileq.worker.executors.stop_request import CANCEL_GRACE_S, Asked, ending, timed_out

NEVER_S = float("inf")
TINY_S = 0.0001
CALL_S = 0.0003  # until a thread hears that it is called, on a slow machine
PATIENCE_S = 0.002  # at most, with everything that should be tiny
MOST_PASSED = 31  # batches between two that the pump waits for
CLOSE_PATIENCE_S = 1.0


class _Running:
    __slots__ = ("asked", "cancelled", "ends_s", "ran", "task", "token")

    def __init__(self, task: Task, ends_s: float) -> None:
        self.task = task
        self.ends_s = ends_s
        self.cancelled = LazyEvent()
        self.asked = Asked.NOTHING
        self.token = [True]
        self.ran: Ran | None = None


class ThreadExecutor:
    """`run` may be called from any number of threads at once; `close_run` ends what it keeps, such as an event loop."""

    def __init__(
        self,
        count: int,
        run: Run,
        *,
        close_run: Callable[[], None] = lambda: None,
        emit: Emit = lambda event, **fields: None,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        self._run = run
        self._close_run = close_run
        self._emit = emit
        self._cancel_grace_s = cancel_grace_s
        self._inbox: deque[_Running] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # one a thread that should look into the inbox, or end
        self._to_pass = self._passes_left = 0  # batches not to wait for, because the last that was waited for took long
        self._is_awaited = False  # the pump stands at the bell until what it submitted is done
        self._bell = threading.Lock()  # free means rung
        self._bell.acquire()
        self._finished: deque[_Running] = deque()
        self._running: dict[ClaimKey, _Running] = {}
        self._ended: list[tuple[Task, Ran | Cancelled | Released]] = []
        self._looks_s = NEVER_S
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_woken = False
        self._is_closed = False
        self._threads: set[threading.Thread] = set()
        for _ in range(count):
            self._add_thread()

    def fileno(self) -> int:
        return self._wake

    def submit(self, tasks: Sequence[Task]) -> None:
        is_awaited = self._may_be_tiny()
        now_s = time.monotonic()
        batch = [_Running(task, now_s + task.timeout_s) for task in tasks]
        for running in batch:
            self._running[running.task.key] = running
            self._looks_s = min(self._looks_s, running.ends_s)
        self._inbox.extend(batch)
        if is_awaited:
            self._calls.put(True)
            self._learn(is_tiny=self._await(batch, now_s + min(PATIENCE_S, CALL_S + TINY_S * len(batch))))
        for _ in range(len(self._inbox)):
            self._calls.put(True)

    def collect(self) -> list[tuple[Task, Ran | Cancelled | Released]]:
        # First the ring, then the note that there was one, then what finished: whoever finishes after that rings again.
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._is_woken = False
        while self._finished:
            running = self._finished.popleft()
            if running.ran is not None and self._running.get(running.task.key) is running:
                self._finish(running, running.ran)
        if self._looks_s <= (now_s := time.monotonic()):
            self._look(now_s)
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        if self._finished:
            return 0.0  # while the pump waited for it, so nobody rang
        return None if self._looks_s == NEVER_S else self._looks_s

    def cancel(self, key: ClaimKey) -> None:
        if running := self._running.get(key):
            self._ask(running, Asked.TO_STOP, self._cancel_grace_s)

    def abandon(self, key: ClaimKey) -> None:
        if running := self._running.pop(key, None):
            running.cancelled.set()
            self._leave_behind(running, "its job was lost")
        self._ended = [(task, ran) for task, ran in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        for running in self._running.values():
            self._ask(running, Asked.TO_QUIT if running.asked is Asked.NOTHING else running.asked, grace_s)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for running in self._running.values():
            running.cancelled.set()
            with suppress(IndexError):  # it has just finished
                running.token.pop()
        self._running.clear()
        closer = threading.Thread(target=self._close_run, name="closer", daemon=True)
        closer.start()
        threads = list(self._threads)
        self._inbox.clear()
        for _ in threads:
            self._calls.put(False)
        deadline_s = time.monotonic() + CLOSE_PATIENCE_S
        for thread in (closer, *threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))
        os.close(self._wake)

    # a task

    def _ask(self, running: _Running, asked: Asked, grace_s: float) -> None:
        running.asked = asked
        running.cancelled.set()
        running.ends_s = min(running.ends_s, time.monotonic() + grace_s)
        self._looks_s = min(self._looks_s, running.ends_s)

    def _finish(self, running: _Running, ran: Ran) -> None:
        del self._running[running.task.key]
        self._ended.append((running.task, ending(running.asked, ran)))

    def _look(self, now_s: float) -> None:
        """Give up what has run out of time, and find out when to look again."""
        for running in [running for running in self._running.values() if running.ends_s <= now_s]:
            running.cancelled.set()
            if self._leave_behind(running, "it did not stop in time"):
                self._finish(running, timed_out(running.task.timeout_s))
        self._looks_s = min((running.ends_s for running in self._running.values()), default=NEVER_S)

    # threads

    def _leave_behind(self, running: _Running, reason: str) -> bool:
        """False if it has just finished: then there is nothing to leave."""
        try:
            running.token.pop()
        except IndexError:
            return False
        self._emit("thread.left_behind", level="warning", key=running.task.key, reason=reason)
        self._add_thread()
        return True

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="handler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _may_be_tiny(self) -> bool:
        """The next batch, as far as the last ones tell."""
        if self._passes_left:
            self._passes_left -= 1
            return False
        if self._to_pass and not self._await(list(self._running.values()), time.monotonic() + PATIENCE_S):
            self._learn(is_tiny=False)
            return False
        return True

    def _learn(self, *, is_tiny: bool) -> None:
        self._to_pass = self._passes_left = 0 if is_tiny else min(2 * self._to_pass + 1, MOST_PASSED)

    def _await(self, batch: list[_Running], until_s: float) -> bool:
        """False if it is not done by then."""
        self._is_awaited = True
        try:
            while any(running.ran is None for running in batch):
                if (left_s := until_s - time.monotonic()) <= 0:
                    return False
                self._bell.acquire(timeout=left_s)
            return True
        finally:
            self._is_awaited = False

    def _next(self) -> _Running | None:
        """The next task; waits for it. None when the executor is closed."""
        while True:
            try:
                return self._inbox.popleft()
            except IndexError:
                if not self._calls.get():
                    return None

    def _tell(self) -> None:
        """Something finished. A pump that stands at the bell is not called otherwise: it collects before it rests."""
        if self._is_awaited:
            if not self._inbox:
                with suppress(RuntimeError):  # somebody has rung already
                    self._bell.release()
        elif not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self._wake, 1)

    def _work(self) -> None:
        while (running := self._next()) is not None:
            if not running.token:
                break  # given up before it began: another thread is in this one's place
            try:
                ran = self._run(running.task, running.cancelled)
            except BaseException as error:
                ran = failed(error)
            try:
                running.token.pop()
            except IndexError:
                break  # given up: another thread is in this one's place
            running.ran = ran
            self._finished.append(running)
            self._tell()
        self._threads.discard(threading.current_thread())
