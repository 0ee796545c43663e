"""The clocks of brokers without a server, and the periods that are the same in all brokers."""

from __future__ import annotations

import time

HOUR_MS = 3_600_000  # of the hourly counters
RATE_WINDOW_MS = 1000  # of the producers' shared rate limit
FULL_WAIT_MS = 1000  # after which a job asks again if its route is full: no broker knows when a running job will end


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000
