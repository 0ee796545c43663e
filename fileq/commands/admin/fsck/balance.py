"""Measures the balance: how many jobs are certainly missing or surplus. The package's docstring explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.commands.admin.fsck.broker_walk import BrokerWalk

MEASUREMENTS = 3
PAUSE_S = 0.5


class Measurement(Struct, frozen=True):
    """The excess is between `at_least` and `at_most`; they are equal if the system was quiet."""

    at_least: int
    at_most: int
    census: Census
    unclaimed: int

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most

    @property
    def excess(self) -> int:
        """The certain part: 0 if the bounds allow 0."""
        return max(self.at_least, 0) or min(self.at_most, 0)


def is_quiet(before: Census, after: Census) -> bool:
    """Whether no job entered or left a queue between the two censuses."""
    return (before.pending, before.scheduled, dict(before.counters)) == (
        after.pending,
        after.scheduled,
        dict(after.counters),
    )


def measurement_from(before: Census, after: Census, walk: BrokerWalk) -> Measurement:
    """From the censuses before and after a walk, and the unclaimed jobs that the walk found."""
    unclaimed = walk.unclaimed
    if is_quiet(before, after):
        exact = after.drift + unclaimed
        return Measurement(exact, exact, after, unclaimed)
    at_least = max(census.drift for census in (before, after))
    at_most = min(census.drift + sum(census.pending.values()) for census in (before, after))
    if not walk.unrecorded and before.drift == after.drift == 0:
        # No job of another program was found, and the sides are equal: jobs that looked like copies were just claimed.
        return Measurement(0, 0, after, 0)
    # The bounds cross only if the damage happens during the walk; then nothing is certain.
    if at_least > at_most:
        at_least, at_most = min(at_most, 0), max(at_least, 0)
    return Measurement(at_least, at_most, after, unclaimed)


def measure(broker: FullBroker, queues: Sequence[str], sleep: Callable[[float], None]) -> Measurement:
    """The tightest of several measurements: on a busy system each gives only bounds."""
    best: Measurement | None = None
    for i in range(MEASUREMENTS):
        if i:
            sleep(PAUSE_S)
        before = broker.census(sweep=True)
        walk = BrokerWalk(broker, queues, expected=sum(before.pending.values()))
        walk.queues()
        now = measurement_from(before, broker.census(sweep=True), walk)
        if now.is_exact:
            return now
        best = now if best is None else tighten(best, now)
    assert best is not None
    return best


def tighten(one: Measurement, other: Measurement) -> Measurement:
    """Combines the bounds of two measurements. Moving jobs do not change the excess, so both bound the same number."""
    at_least, at_most = max(one.at_least, other.at_least), min(one.at_most, other.at_most)
    if at_least > at_most:
        return other
    return Measurement(at_least, at_most, other.census, other.unclaimed)


def agreed_excess(first: Measurement, second: Measurement) -> int:
    """The excess that both measurements prove."""
    if first.excess > 0 and second.excess > 0:
        return min(first.excess, second.excess)
    if first.excess < 0 and second.excess < 0:
        return max(first.excess, second.excess)
    return 0
