"""Runs each task in a child process: crashes are contained, timeouts are hard, all cores are used.

One warm child a place. Children work whatever this thread does, and this thread never waits for them: what can't be
written now is written later, half a message waits for its other half.

How a task ends, beside the outcome that its child sends:
1. The child ended: the fork server says so, with the status. The end of the stream alone says nothing, since a handler
   may close it and go on. What the child sent before it ended counts.
2. Its time is up, it uses too much memory, it was cancelled and did not stop: the child is killed and the place gets
   another at once. Whatever ran below the child falls to the fork server, which kills it.
3. The child writes nonsense: killed as well.
4. The fork server is gone, and all children with it; another one is started.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from fileq.config.units import format_size
from fileq.core.claim import ClaimKey
from fileq.core.events import Emit
from fileq.core.outcome import Cancelled, Died, Failed, Released
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process.child_handle import NEVER_S, Garbage, Place
from fileq.worker.executors.process.child_pool import Children
from fileq.worker.executors.process.descendants import memory_of
from fileq.worker.executors.process.messages import NUMBERS
from fileq.worker.executors.process.program import Program
from fileq.worker.executors.stop_request import CANCEL_GRACE_S, Asked, ending, timed_out

RING_EVERY_S = 0.1  # while a child has been asked to stop and has not
SAMPLE_EVERY_S = 0.2


class ProcessExecutor:
    """Made, it has imported its handlers; raises ConfigError if they can't be imported."""

    def __init__(
        self,
        count: int,
        program: Program,
        *,
        max_memory: int | None = None,
        emit: Emit = lambda event, **fields: None,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        self._max_memory = max_memory
        self._cancel_grace_s = cancel_grace_s
        self._places = [Place() for _ in range(count)]
        self._idle: list[Place] = []  # ready, without a task; the last used is the first used again
        self._ended: list[tuple[Task, Ran | Cancelled | Released]] = []
        self._last_number = 0
        self._is_quitting = self._is_closed = False
        self._looks_s = 0.0  # when something may be due: never later than that, sometimes earlier
        self._samples_s = NEVER_S
        self._children = Children(self._places, program, emit)

    def fileno(self) -> int:
        return self._children.epoll.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if self._idle:
                self._start(self._idle.pop(), task)
                continue
            # It starts when its child is ready; its time counts from then.
            place = next(place for place in self._places if place.task is None)
            place.task = task
            if self._is_quitting:
                self._ask(place, Asked.TO_QUIT, 0.0)

    def collect(self) -> list[tuple[Task, Ran | Cancelled | Released]]:
        self._hear_everyone()
        if self._looks_s <= (now_s := time.monotonic()):
            self._look(now_s)
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        return None if self._looks_s == NEVER_S else self._looks_s

    def cancel(self, key: ClaimKey) -> None:
        for place in self._holding(key):
            self._ask(place, Asked.TO_STOP, self._cancel_grace_s)

    def abandon(self, key: ClaimKey) -> None:
        for place in self._holding(key):
            is_running = place.is_running
            self._let_go(place)
            if is_running:
                self._replace(place)
        self._ended = [(task, ran) for task, ran in self._ended if task.key != key]

    def quit(self, grace_s: float) -> None:
        self._hear_everyone()  # what ended before counts as it is
        self._is_quitting = True
        self._children.stop()
        for place in self._places:
            if place.task is not None:
                self._ask(place, Asked.TO_QUIT if place.asked is Asked.NOTHING else place.asked, grace_s)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._children.close()

    # a task

    def _hear_everyone(self) -> None:
        children = self._children
        for fd, event in children.epoll.poll(0, len(self._places) + 2):
            place = children.by_fd.get(fd)
            if place is not None:
                if event & select.EPOLLOUT:
                    children.listen(place, is_writing=not place.flush())
                if event & ~select.EPOLLOUT:
                    self._hear(place)
            elif fd == children.server_fd:  # and not the stream of a child that was replaced since the poll
                for place, cause in children.hear():
                    self._bury(place, cause)
                self._looks_s = 0.0

    def _start(self, place: Place, task: Task) -> None:
        self._last_number = self._last_number % (NUMBERS - 1) + 1
        now_s = time.monotonic()
        try:
            is_said = place.start(self._last_number, task, now_s + task.timeout_s)
        except BrokenPipeError:
            self._try_again(place)
            return
        if place.ends_s < self._looks_s:
            self._looks_s = place.ends_s
        if self._max_memory is not None and self._samples_s == NEVER_S:
            self._samples_s = now_s + SAMPLE_EVERY_S
            self._looks_s = min(self._looks_s, self._samples_s)
        if not is_said:
            self._children.listen(place, is_writing=True)

    def _ask(self, place: Place, asked: Asked, grace_s: float) -> None:
        if not place.is_running:
            self._finish(place, asked, Died("never began"))
            self._looks_s = 0.0  # there is something to collect
            return
        if not place.ask(asked, time.monotonic() + grace_s):
            self._children.listen(place, is_writing=True)
        self._looks_s = min(self._looks_s, place.ends_s, time.monotonic() + RING_EVERY_S)

    def _hear(self, place: Place) -> None:
        was_ready = place.is_ready
        try:
            ran = place.hear()
        except BlockingIOError:
            return  # the event was the former child's, whose descriptor this one got
        except EOFError:
            self._children.deafen(place)  # whether and how the child ended, the fork server tells
            return
        except Garbage:
            self._end_by_force(place, Died("wrote something that is no outcome"))
            return
        if ran is not None:
            place.failures = 0
            self._finish(place, place.asked, ran)
            self._idle.append(place)
        elif place.is_ready and not was_ready:
            if place.task is None:
                self._idle.append(place)
            else:
                self._start(place, place.task)

    def _finish(self, place: Place, asked: Asked, ran: Ran) -> None:
        task = place.task
        self._let_go(place)
        if task is not None:
            self._ended.append((task, ending(asked, ran)))

    def _let_go(self, place: Place) -> None:
        place.task = None
        place.asked = Asked.NOTHING
        place.ends_s = NEVER_S

    def _end_by_force(self, place: Place, ran: Ran) -> None:
        if place.is_running:
            self._finish(place, place.asked, ran)
        self._replace(place)

    def _holding(self, key: ClaimKey) -> list[Place]:
        return [place for place in self._places if place.task is not None and place.task.key == key]

    # its child

    def _bury(self, place: Place, cause: str) -> None:
        """Its child has ended: what it said before counts."""
        child = place.child
        while place.is_running and place.fd in self._children.by_fd and place.has_word:
            self._hear(place)
        if place.child != child:
            return
        if place.was_task_read or place.asked is not Asked.NOTHING:
            self._end_by_force(place, Died(cause))
        else:
            self._try_again(place)

    def _try_again(self, place: Place) -> None:
        """Its child ended before it began the task: nothing is held against that, the next child gets it."""
        place.number = 0
        place.ends_s = NEVER_S
        self._replace(place)

    def _replace(self, place: Place) -> None:
        if place in self._idle:
            self._idle.remove(place)
        self._children.replace(place)
        self._looks_s = 0.0

    # what is due

    def _look(self, now_s: float) -> None:
        """End what has run out of time or memory, and find out when to look again."""
        rings_s = NEVER_S
        for place in self._places:
            if place.ends_s <= now_s and place.task is not None:
                self._end_by_force(place, timed_out(place.task.timeout_s))
            elif place.is_running and place.asked is not Asked.NOTHING:
                place.ring()
                rings_s = now_s + RING_EVERY_S
        if self._samples_s <= now_s:
            self._sample(now_s)
        ends_s = min((place.ends_s for place in self._places), default=NEVER_S)
        self._looks_s = min(self._children.look(now_s), self._samples_s, ends_s, rings_s)

    def _sample(self, now_s: float) -> None:
        running = [place for place in self._places if place.is_running and place.pid > 0]
        limit = self._max_memory or 0
        for place in running:
            if (used := memory_of(place.pid)) > limit:
                error = f"used {used >> 20}MB of memory, more than worker.max_memory, {format_size(limit)}"
                self._end_by_force(place, Failed(error, "MemoryLimit"))
        self._samples_s = now_s + SAMPLE_EVERY_S if running else NEVER_S
