"""Buries waiting jobs whose deadline has passed, in a loop of its own: to find a job in a long queue takes a while.

The scheduler learns from promote() when a deadline is to be looked at, and wakes this loop. Until then it is idle.
The jobs die like one whose worker finds at its claim that the deadline has passed: with `on_dead`, webhooks, the order
to move or delete the file (`worker.after`; post_actions.py does it) and the count of the batch. Only the broker's
clock counts. Any number of workers do the same; the broker returns each job to one of them.

What a kill -9 leaves: each job dead or waiting. One that overdue() had returned is returned again ten seconds later, to
any worker; if it is claimed before, that worker buries it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fileq.brokers.protocol import Broker
from fileq.config import Config
from fileq.core.events import Emit, followed, ignore, settled
from fileq.core.job import Claim, wall_clock_ms
from fileq.core.settlement import Settlement, SettleResult, decide
from fileq.worker.pump import DEADLINE_PASSED, is_overdue
from fileq.worker.settlements import rules_of, with_order, worker_policy

PAGE = 500
IDLE_S = 3600.0  # the scheduler wakes this loop


class Deadlines:
    name = "deadlines"

    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        add_follow_ups: Callable[[Settlement], Settlement],
        on_dead: Callable[[str], None] = lambda id: None,
        emit: Emit = ignore,
    ) -> None:
        self._broker = broker
        self._add_follow_ups = add_follow_ups
        self._on_dead = on_dead
        self._emit = emit
        self._policy = worker_policy(config.worker)
        self._rules = rules_of(config.worker.after)
        self.wake = threading.Event()

    def turn(self) -> float:
        self.wake.clear()
        claims = self._broker.overdue(PAGE)
        # Bytes without a deadline may have the record: another program pushed them under the id of this job.
        settlements = [self._burial(claim) for claim in claims if is_overdue(claim)]
        results = self._broker.bury_overdue(settlements) if settlements else ()
        for settlement, result in zip(settlements, results, strict=True):
            if result is SettleResult.DONE:
                self._report(settlement)
        return 0.0 if len(claims) == PAGE else IDLE_S

    def _burial(self, claim: Claim) -> Settlement:
        settlement = decide(claim, DEADLINE_PASSED, self._policy, now_ms=wall_clock_ms())
        return self._add_follow_ups(with_order(settlement, claim.version, self._rules))

    def _report(self, settlement: Settlement) -> None:
        self._emit(settled(settlement))
        self._on_dead(settlement.claim.id)
        if settlement.follow_ups:
            self._emit(followed(settlement))
