"""Promotes jobs that are due from `scheduled` to their queues. Owns no thread; any number of schedulers may run.

Due times are points on the broker's clock. After that clock has stepped back, by an hour for example, every job would
wait for an hour longer. So the scheduler compares it with the monotonic clock of this process. After a step, and at its
start, because the step may have been while no scheduler ran, it realigns all scheduled jobs: one page a turn, so that
promotions go on meanwhile.

The same call says when a schedule is due; schedule_firing.py fires it. It also says whether a cancellation of running
jobs was requested since the last turn. Then the worker renews its leases soon, which tells it what to cancel. And it
says when a deadline is to be looked at, for which the scheduler wakes another loop (deadlines.py).

Once an hour it sweeps the unique keys that no unfinished job has any more, which only frees memory.

What a kill -9 leaves: each due job promoted or not, each page realigned or not; any other scheduler promotes the rest,
and the next one that starts realigns the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fileq.brokers.clocks import STEP_TOLERANCE_MS
from fileq.brokers.notifications import DueReports
from fileq.brokers.protocol import Broker
from fileq.worker.schedule_firing import ScheduleFiring

# The longest pause if the broker does not report changes: another process may schedule a job that is due at once.
LONGEST_PAUSE_S = 0.04
LONGEST_WATCHED_PAUSE_S = 1.0  # if it does: its clock may step, and a connection may be lost without a sign
BATCH = 500
SWEEP_EVERY_S = 3600.0


class Scheduler:
    name = "scheduler"

    def __init__(
        self,
        broker: Broker,
        *,
        firing: ScheduleFiring | None = None,
        cancel_requested: Callable[[], None] = lambda: None,
        deadline_reached: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._firing = firing
        self._cancel_requested = cancel_requested
        self._deadline_reached = deadline_reached
        self._cancel_requests: int | None = None  # that were known in the last turn
        self._monotonic = monotonic
        self._unaligned: int | None = 0  # the offset of the next page to realign
        self._sweep_at_s = monotonic()
        self._swept = ""  # the cursor of the sweep that is under way
        self._last: tuple[int, float] | None = None  # the broker's time in the last turn, and our time after that call
        self.wake = threading.Event()  # cuts the pause short
        if isinstance(broker, DueReports):
            broker.report_due_changes(self.wake.set)

    def turn(self) -> float:
        """Promotes the jobs that are due. Returns the seconds until the next turn."""
        called_s = self._monotonic()
        self.wake.clear()
        promoted = self._broker.promote(BATCH)
        if self._cancel_requests not in (None, promoted.cancel_requests):
            self._cancel_requested()
        self._cancel_requests = promoted.cancel_requests
        deadline_ms = promoted.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= promoted.now_ms:
            self._deadline_reached()
            deadline_ms = None  # until the other loop has looked, there is nothing to wait for
        if self._has_stepped_back(promoted.now_ms, called_s):
            self._unaligned = 0
        self._last = promoted.now_ms, self._monotonic()
        if self._unaligned is not None:
            self._unaligned = self._broker.realign(self._unaligned, BATCH)
        if called_s >= self._sweep_at_s:
            self._sweep(called_s)
        fires_ms = self._firing.turn(promoted) if self._firing is not None else None
        if promoted.count == BATCH:
            return 0.0
        due_ms = [due_ms for due_ms in (promoted.next_due_ms, fires_ms, deadline_ms) if due_ms is not None]
        longest_s = LONGEST_WATCHED_PAUSE_S if promoted.is_watched and not self._has_pages else LONGEST_PAUSE_S
        if not due_ms:
            return longest_s
        return min(longest_s, max(0.001, (min(due_ms) - promoted.now_ms) / 1000))

    @property
    def _has_pages(self) -> bool:
        """More pages are to be realigned or swept, one a turn."""
        return self._unaligned is not None or bool(self._swept)

    def _sweep(self, now_s: float) -> None:
        """Sweeps one page of the unique keys; the next one in the next turn, and all of them again in an hour."""
        cursor = self._broker.sweep_unique(self._swept)
        self._swept = cursor or ""
        if cursor is None:
            self._sweep_at_s = now_s + SWEEP_EVERY_S

    def _has_stepped_back(self, now_ms: int, called_s: float) -> bool:
        """Whether less time has passed on the broker's clock than here since the last turn, by more than a second."""
        if self._last is None:
            return False
        last_ms, last_s = self._last
        return now_ms - last_ms < (called_s - last_s) * 1000 - STEP_TOLERANCE_MS
