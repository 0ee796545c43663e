"""Runs tasks in threads of this process: for handlers that share memory, or are tiny.

A thread can't be ended from outside. One that ignores context.cancelled when its time is up is left behind, with a
warning, and another takes its place; what it brings later is dropped. Who was faster, the thread that finished or the
pump that gave up, is decided by taking the task's token: a list's pop is atomic.

Waking a thread costs more than a tiny task does, and sixteen of them quarrel over the interpreter with the pump. So
while tasks are tiny a thread that is awake runs what has come in meanwhile, and no other is called; if one of them
turns out to take its time, the pump calls the others a millisecond later, or, while the pump waits for its broker, the
caller does, a thread that has nothing else to do.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from fileq.handlers.context import Flag
from fileq.handlers.endings import failed
from fileq.handlers.task import Ran, Task
from fileq.outcome import Cancelled, Released
from fileq.service import Emit
from fileq.worker.executors.asked import CANCEL_GRACE_S, Asked, ending, timed_out
from fileq.worker.program import Run

NEVER_S = float("inf")
TINY_S = 0.001
CALL_AFTER_S = 0.001  # a task that nobody was called for waits about as long
PATROL_S = 0.02  # or, at most, twice this while nobody collects
QUIET_LOOKS = 5  # without a task waiting before the caller sleeps
CLOSE_PATIENCE_S = 1.0


class _Running:
    __slots__ = ("asked", "cancelled", "ends_s", "ran", "task", "token")

    def __init__(self, task: Task, ends_s: float) -> None:
        self.task = task
        self.ends_s = ends_s
        self.cancelled = Flag()
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
        self._asleep: deque[None] = deque()  # one a thread that waits to be called
        self._usual_s = 1.0  # how long tasks take, the last ones counting most
        self._doubts: SimpleQueue[bool] = SimpleQueue()  # for the caller: look after a while, or end
        self._has_doubt = False
        self._calls_s = NEVER_S  # when to call for what is still in the inbox
        self._caller: threading.Thread | None = None
        self._finished: deque[_Running] = deque()
        self._running: dict[str, _Running] = {}
        self._ended: list[tuple[Task, Ran | Cancelled | Released]] = []
        self._looks_s = NEVER_S
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_woken = False
        self._rings_owed = 0  # threads that noted that they wake us, and have not done so yet
        self._is_closed = False
        self._threads: set[threading.Thread] = set()
        for _ in range(count):
            self._add_thread()

    def fileno(self) -> int:
        return self._wake

    def submit(self, task: Task) -> None:
        running = _Running(task, time.monotonic() + task.timeout_s)
        if running.ends_s < self._looks_s:
            self._looks_s = running.ends_s
        self._running[task.key] = running
        self._inbox.append(running)
        awake = len(self._threads) - len(self._asleep) + self._calls.qsize()
        if self._usual_s < TINY_S and awake > 0:
            self._doubt()
        else:
            self._calls.put(True)

    def collect(self) -> list[tuple[Task, Ran | Cancelled | Released]]:
        self._hear_rings()
        while self._finished:
            running = self._finished.popleft()
            if running.ran is not None and self._running.get(running.task.key) is running:
                self._finish(running, running.ran)
        now_s = time.monotonic()
        if self._calls_s <= now_s or not self._inbox:
            self._calls_s = NEVER_S
            self._call_all()
        if self._looks_s <= now_s:
            self._look(now_s)
        ended, self._ended = self._ended, []
        return ended

    def _hear_rings(self) -> None:
        """Before the look at what finished: whoever finishes after it wakes us again. A read lets another thread have
        the interpreter, so it is only done when somebody wrote, or has noted that he will: each note is one write."""
        if self._is_woken:
            self._is_woken = False
            self._rings_owed += 1
        if not self._rings_owed:
            return
        try:
            self._rings_owed -= os.eventfd_read(self._wake)
        except BlockingIOError:
            return  # he stands between his note and his write
        if self._rings_owed < 0:
            # One who noted after that has rung already; what he finished is among what is looked at now.
            self._rings_owed = 0
            self._is_woken = False

    def next_deadline_s(self) -> float | None:
        due_s = min(self._looks_s, self._calls_s)
        return None if due_s == NEVER_S else due_s

    def cancel(self, key: str) -> None:
        if running := self._running.get(key):
            self._ask(running, Asked.TO_STOP, self._cancel_grace_s)

    def abandon(self, key: str) -> None:
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
            if running.token:
                running.token.pop()
        self._running.clear()
        closer = threading.Thread(target=self._close_run, name="closer", daemon=True)
        closer.start()
        threads = list(self._threads)
        self._inbox.clear()
        for _ in threads:
            self._calls.put(False)
        self._doubts.put(False)
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

    def _doubt(self) -> None:
        """Nobody was called for a task: whether it has begun is looked at a little later, whatever the pump does."""
        if self._caller is None:
            self._caller = threading.Thread(target=self._call_later, name="caller", daemon=True)
            self._caller.start()
        if self._calls_s == NEVER_S:
            self._calls_s = time.monotonic() + CALL_AFTER_S
        if not self._has_doubt:
            self._has_doubt = True
            self._doubts.put(True)

    def _call_all(self) -> None:
        for _ in range(len(self._inbox)):
            self._calls.put(True)

    def _call_later(self) -> None:
        """Awake as long as tasks keep coming, and a little longer: being woken for each would cost what this saves."""
        while self._doubts.get():
            quiet = 0
            while quiet < QUIET_LOOKS:
                oldest = self._first()
                time.sleep(PATROL_S)
                quiet = quiet + 1 if oldest is None else 0
                if oldest is not None and self._first() is oldest:  # else somebody is at work on them
                    self._call_all()
            self._has_doubt = False
            if self._inbox:  # perhaps since before that: whoever submitted it saw that there was doubt already
                self._doubt()

    def _first(self) -> _Running | None:
        try:
            return self._inbox[0]
        except IndexError:
            return None

    def _next(self) -> _Running | None:
        """The next task; waits for it. None when the executor is closed."""
        while True:
            try:
                return self._inbox.popleft()
            except IndexError:
                self._asleep.append(None)
            # Whoever submitted before that has counted on us, and called nobody.
            is_called = bool(self._inbox) or self._calls.get()
            self._asleep.pop()
            if not is_called:
                return None

    def _work(self) -> None:
        while (running := self._next()) is not None:
            if not running.token:
                break  # given up before it began: another thread is in this one's place
            started_s = time.monotonic()
            try:
                ran = self._run(running.task, running.cancelled)
            except BaseException as error:
                ran = failed(error)
            self._usual_s += (time.monotonic() - started_s - self._usual_s) / 4
            try:
                running.token.pop()
            except IndexError:
                break  # given up: another thread is in this one's place
            running.ran = ran
            self._finished.append(running)
            if not self._is_woken:
                self._is_woken = True
                os.eventfd_write(self._wake, 1)
        self._threads.discard(threading.current_thread())
