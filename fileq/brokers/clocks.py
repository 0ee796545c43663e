"""The clocks of brokers without a server, and the periods that are the same in all brokers."""

from __future__ import annotations

import time

HOUR_MS = 3_600_000  # the period of the hourly counters
RATE_WINDOW_MS = 1000  # the window of the producers' shared rate limit
FULL_WAIT_MS = 1000  # when a job of a full route asks again: no broker knows when a running job will end

# When the index of deadlines is looked at again: for a job that runs, for one that overdue() has returned, and for any
# other at the latest, so that a job that has ended does not stay in the index until its deadline.
RUNNING_LOOK_MS = 1000
RETURNED_LOOK_MS = 10_000
LONGEST_LOOK_MS = HOUR_MS


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


STEP_TOLERANCE_MS = 1000  # clocks that differ by less count as equal


def due_after_step(due_ms: int, since_ms: int, now_ms: int) -> int | None:
    """The due time of a delay that began in the future, because the clock has stepped back since: the whole delay from
    now on. None if it did not."""
    return now_ms + max(0, due_ms - since_ms) if since_ms > now_ms + STEP_TOLERANCE_MS else None
