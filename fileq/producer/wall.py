"""What the wall clock says, as long as it can be believed: the age of files, and the days in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 0.5  # the two clocks drift apart by far less between two looks
_LONGEST_LOOK_S = 0.05


class Wall:
    """Compares the wall clock with one that never steps. Right after a step, or a sleep of the machine, stamps from
    before it lie about their age; once the settle time has passed since, they are old enough whatever they say."""

    def __init__(
        self,
        settle_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settle_s = settle_s
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._doubtful_until_s = float("-inf")
        self._apart_s = self._first_apart_s = wall_ns() / 1e9 - monotonic()

    def look(self) -> None:
        """A step is noticed here, so look often."""
        before_s = self._monotonic()
        apart_s = self._wall_ns() / 1e9 - before_s
        if self._monotonic() - before_s > _LONGEST_LOOK_S:
            return  # we were held up between the two: that is no step
        if abs(apart_s - self._apart_s) > STEP_S:
            self._doubtful_until_s = before_s + self._settle_s
        self._apart_s = apart_s

    def has_rested(self, touched_ns: int) -> bool:
        """Whether something last touched then has been left alone for the settle time."""
        self.look()
        return self._wall_ns() - touched_ns >= self._settle_s * 1e9 and self._monotonic() >= self._doubtful_until_s

    def steady_ms(self) -> int:
        """The time in ms since the epoch, had nobody set the clock since the start."""
        return round((self._first_apart_s + self._monotonic()) * 1000)
