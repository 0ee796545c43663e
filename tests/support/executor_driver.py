"""Drives an executor as the pump does, with nothing else around it. Tests name tasks by plain strings."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from fileq.core.job import ClaimKey
from fileq.core.outcome import Done, Task, TaskOutcome
from fileq.worker.executors.protocol import Executor
from tests.support.waiting import wait_until


class ExecutorDriver:
    """Submits tasks and collects their outcomes into `ended`; fails if a task ends twice."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.ended: dict[str, TaskOutcome] = {}
        self._submitted = 0

    def submit(
        self,
        raw: str | bytes = b"",
        *,
        name: str = "",
        route: int = 0,
        timeout_s: float = 300.0,
        path: bytes = b"",
        roots: tuple[bytes, ...] = (),
    ) -> str:
        """Submit one task; returns its name."""
        self._submitted += 1
        name = name or f"{self._submitted}:{raw[:20]!r}"
        raw = raw.encode() if isinstance(raw, str) else raw
        self.executor.submit([Task(key_of(name), raw, route, path, roots, 1, timeout_s)])
        return name

    def submit_unsendable(self) -> str:
        """Submit a task that fits into no message."""
        self.executor.submit([Task(key_of("unsendable"), b"", 0, b"", (), 2**70, 300.0)])
        return "unsendable"

    def submit_together(self, **raws: bytes) -> None:
        """Submit one bundle: a task for each name."""
        self.executor.submit([Task(key_of(name), raw, 0, b"", (), 1, 300.0) for name, raw in raws.items()])

    def cancel(self, name: str) -> None:
        self.executor.cancel(key_of(name))

    def abandon(self, name: str) -> None:
        self.executor.abandon(key_of(name))

    def turn(self, max_wait_s: float = 0.02) -> None:
        """Wait as the pump would, for at most this long, and collect."""
        deadline_s = self.executor.next_deadline_s()
        if deadline_s is not None:
            max_wait_s = max(0.0, min(max_wait_s, deadline_s - time.monotonic()))
        select.select([self.executor], [], [], max_wait_s)
        self.collect()

    def collect(self) -> None:
        for task, outcome in self.executor.collect():
            assert task.key.slot not in self.ended, f"{task.key.slot} ended twice"
            self.ended[task.key.slot] = outcome

    def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Turn until the condition holds."""

        def holds() -> object:
            self.turn()
            return condition()

        wait_until(holds, timeout_s)

    def outcome(self, name: str) -> TaskOutcome:
        """Turn until this task has ended."""
        self.until(lambda: name in self.ended)
        return self.ended.pop(name)

    def run(self, raw: str | bytes, *, timeout_s: float = 300.0, path: bytes = b"") -> TaskOutcome:
        return self.outcome(self.submit(raw, timeout_s=timeout_s, path=path))


def key_of(name: str) -> ClaimKey:
    return ClaimKey(name, 0)


def is_readable(executor: Executor) -> bool:
    return bool(select.select([executor], [], [], 0)[0])


def result_of(outcome: TaskOutcome) -> bytes:
    assert isinstance(outcome, Done), outcome
    return outcome.result
