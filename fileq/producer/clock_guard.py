"""Reads the wall clock, and says when it cannot be trusted because it was set. Never waits.

The producer needs the wall clock for the age of files and for the days in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 0.5  # between two checks the two clocks drift apart by far less
_SLOW_CHECK_S = 0.05


class ClockGuard:
    """Compares the wall clock with the monotonic clock.

    After a step of the wall clock, or a suspend of the machine, the timestamps of files written before it give a wrong
    age. Once `settle_unclosed` has passed since the step, those files are old enough in truth too."""

    def __init__(
        self,
        settle_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settle_s = settle_s
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._untrusted_until_s = float("-inf")
        self._offset_s = self._first_offset_s = wall_ns() / 1e9 - monotonic()

    def check(self) -> None:
        """Notices a step of the wall clock. To be called often: it sees only what happened since the last call."""
        before_s = self._monotonic()
        offset_s = self._wall_ns() / 1e9 - before_s
        if self._monotonic() - before_s > _SLOW_CHECK_S:
            return  # this process was suspended between the two readings: that is no step
        if abs(offset_s - self._offset_s) > STEP_S:
            self._untrusted_until_s = before_s + self._settle_s
        self._offset_s = offset_s

    def has_aged(self, modified_ns: int) -> bool:
        """Whether a file with this timestamp has not been touched for `settle_unclosed`."""
        self.check()
        return self._wall_ns() - modified_ns >= self._settle_s * 1e9 and self._monotonic() >= self._untrusted_until_s

    def steady_ms(self) -> int:
        """Milliseconds since the epoch, unaffected by steps of the wall clock since the start."""
        return round((self._first_offset_s + self._monotonic()) * 1000)
