"""The tasks that the executor has, and the claims that wait until it has room for them.

The executor never has more than `worker.count` tasks, not counting deliveries of webhooks. Claims that were made in
advance wait here, in the order in which they were made.

What a kill -9 leaves: the claims in the broker's processing lists. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from fileq.core.claim import Claim, ClaimKey
from fileq.handlers.task import Task
from fileq.worker.executors.protocol import Executor, TaskOutcome
from fileq.worker.prefetch import WAIT_MAX_S
from fileq.worker.slot import Slot, Waiting

NEVER_S = float("inf")


class RunQueue:
    """Only here are tasks submitted, collected and abandoned: `room` counts them."""

    def __init__(self, executor: Executor, count: int, monotonic: Callable[[], float]) -> None:
        self._executor = executor
        self._monotonic = monotonic
        self._waiting: deque[Slot] = deque()
        self.room = count  # how many more tasks may be submitted
        self.deliveries: set[ClaimKey] = set()  # those that run; they take no room, because they have their own threads

    def make_room(self, delivery: ClaimKey) -> None:
        """Makes room for one delivery, before it is submitted. The room is taken away when the delivery ends."""
        self.deliveries.add(delivery)
        self.room += 1

    def submit(self, tasks: Sequence[Task]) -> None:
        if tasks:
            self.room -= len(tasks)
            self._executor.submit(tasks)

    def collect(self, *, waits: bool) -> list[tuple[Task, TaskOutcome]]:
        ended = self._executor.collect(waits=waits)
        self.room += len(ended)
        if self.deliveries:
            for task, _ in ended:
                self._take_room(task.key)
        return ended

    def abandon(self, key: ClaimKey) -> None:
        self._executor.abandon(key)
        self.room += 1
        self._take_room(key)

    def _take_room(self, ended: ClaimKey) -> None:
        if ended in self.deliveries:
            self.deliveries.remove(ended)
            self.room -= 1

    # claims that wait

    @property
    def is_any_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, claims: Sequence[tuple[Slot, Claim]]) -> None:
        now_s = self._monotonic()
        for slot, claim in claims:
            slot.wait(claim, now_s)
            self._waiting.append(slot)

    def take(self, count: int) -> list[tuple[Slot, Claim]]:
        """Removes and returns the first claims, at most `count`. Their slots are still Waiting."""
        slots = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        return [(slot, slot.state.claim) for slot in slots if isinstance(slot.state, Waiting)]

    def take_all(self) -> list[tuple[Slot, Claim]]:
        return self.take(len(self._waiting))

    def remove(self, slot: Slot) -> None:
        self._waiting.remove(slot)

    @property
    def due_s(self) -> float:
        """When the first claim will have waited for WAIT_MAX_S, by the monotonic clock."""
        state = self._waiting[0].state if self._waiting else None
        return state.since_s + WAIT_MAX_S if isinstance(state, Waiting) else NEVER_S

    @property
    def is_overdue(self) -> bool:
        return bool(self._waiting) and self._monotonic() >= self.due_s
