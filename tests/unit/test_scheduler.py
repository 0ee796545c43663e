"""The pauses of the scheduler between its turns."""

from __future__ import annotations

from typing import Any

import pytest

from fileq.brokers.types import Promoted
from fileq.worker.scheduler import BATCH, LONGEST_PAUSE_S, Scheduler

NOW_MS = 1_000_000


class PromotingBroker:
    def __init__(self, promoted: Promoted) -> None:
        self.promoted = promoted
        self.limits: list[int] = []

    def promote(self, limit: int) -> Promoted:
        self.limits.append(limit)
        return self.promoted


@pytest.mark.parametrize(
    ("count", "due_in_ms", "pause_s"),
    [
        (BATCH, 10_000, 0.0),  # more jobs may be due
        (BATCH, None, 0.0),
        (BATCH - 1, None, LONGEST_PAUSE_S),
        (0, None, LONGEST_PAUSE_S),
        (0, 10_000, LONGEST_PAUSE_S),
        (3, 25, 0.025),
        (3, 0, 0.001),  # due in this millisecond: not a busy loop
        (3, -5, 0.001),
    ],
)
def test_the_pause_ends_when_the_next_job_is_due_and_is_never_long(
    count: int, due_in_ms: int | None, pause_s: float
) -> None:
    next_due_ms = None if due_in_ms is None else NOW_MS + due_in_ms
    broker: Any = PromotingBroker(Promoted(count, next_due_ms, NOW_MS))
    assert Scheduler(broker).turn() == pytest.approx(pause_s)
    assert broker.limits == [BATCH]
