"""The conservation law, measured: how much is missing or too much, for certain. See the package's docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.commands.admin.fsck.walk import Walk

TRIES = 3
PAUSE_S = 0.5


class Measured(Struct, frozen=True):
    """The excess lies between these two; at a quiet moment they are equal."""

    at_least: int
    at_most: int
    census: Census
    unclaimed: int

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most

    @property
    def excess(self) -> int:
        """What is certain: 0 where the bounds leave that possible."""
        return max(self.at_least, 0) or min(self.at_most, 0)


def is_quiet(before: Census, after: Census) -> bool:
    """Nothing that could change what waits has happened between these looks."""
    return (before.pending, before.scheduled, dict(before.counters)) == (
        after.pending,
        after.scheduled,
        dict(after.counters),
    )


def measured(before: Census, after: Census, walk: Walk) -> Measured:
    """From the looks before and after a walk, and what it saw that a claim would adopt."""
    unclaimed = walk.unclaimed
    if is_quiet(before, after):
        exact = after.drift + unclaimed
        return Measured(exact, exact, after, unclaimed)
    looks = (before, after)
    at_least = max(look.drift for look in looks)
    at_most = min(look.drift + sum(look.pending.values()) for look in looks)
    if not walk.unrecorded and before.drift == after.drift == 0:
        # Nothing seen that others pushed, and the books balance; what looks like a copy was claimed just then.
        return Measured(0, 0, after, 0)
    # They can cross only if the damage itself happens just now; then nothing is certain.
    if at_least > at_most:
        at_least, at_most = min(at_most, 0), max(at_least, 0)
    return Measured(at_least, at_most, after, unclaimed)


def measure(broker: FullBroker, queues: Sequence[str], sleep: Callable[[float], None]) -> Measured:
    """The best of some tries: a system that is never still has only bounds."""
    best: Measured | None = None
    for i in range(TRIES):
        if i:
            sleep(PAUSE_S)
        before = broker.census(sweep=True)
        walk = Walk(broker, queues, expected=sum(before.pending.values()))
        walk.queues()
        now = measured(before, broker.census(sweep=True), walk)
        if now.is_exact:
            return now
        best = now if best is None else tighter(best, now)
    assert best is not None
    return best


def tighter(one: Measured, other: Measured) -> Measured:
    """The excess does not change by what moves, so both are about the same number."""
    at_least, at_most = max(one.at_least, other.at_least), min(one.at_most, other.at_most)
    if at_least > at_most:
        return other
    return Measured(at_least, at_most, other.census, other.unclaimed)


def agreed(first: Measured, second: Measured) -> int:
    """What both looks are certain of."""
    if first.excess > 0 and second.excess > 0:
        return min(first.excess, second.excess)
    if first.excess < 0 and second.excess < 0:
        return max(first.excess, second.excess)
    return 0
