"""The settings for what follows a failed attempt: the delay before the next one, and the breaker of its route."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from fileq.config.kinds import FractionKind
from fileq.config.section import AtLeastOne, NotAKey, Section
from fileq.config.value_types import Count, Seconds, SecondsOrZero


class BackoffSettings(Section, frozen=True):
    """How long to wait before the next attempt: by a formula, or `delays`, which a plain list sets."""

    list_field: ClassVar[str] = "delays"

    strategy: Annotated[
        Literal["exponential", "linear", "fixed", "power"],
        "delay after n failures: exponential base·2^(n-1), linear base·n, fixed base, power (base in seconds)^n",
    ] = "exponential"
    base: Annotated[SecondsOrZero, "base of the formula; above 1s for power"] = 0.5
    max: Annotated[SecondsOrZero, "maximum delay"] = 10.0
    jitter: Annotated[
        float, FractionKind(), "each delay is multiplied by a random factor from 1 - jitter to 1 + jitter"
    ] = 0.2
    delays: Annotated[tuple[SecondsOrZero, ...], AtLeastOne, NotAKey] = ()

    @classmethod
    def from_list(cls, items: tuple[float, ...]) -> Self:
        """Listed delays are used exactly: without jitter and without a cap."""
        return cls(delays=items, jitter=0.0, max=max(items))


class CircuitBreakerSettings(Section, frozen=True):
    enabled: Annotated[bool, "defer the jobs of a route while most of its attempts fail"] = True
    failure_threshold: Annotated[
        float, FractionKind(allows_zero=False), "share of failures that opens the breaker of a route"
    ] = 0.5
    window: Annotated[Seconds, "period over which failures are counted"] = 60.0
    cooldown_period: Annotated[Seconds, "time until one job of the route is tried"] = 30.0
    min_samples: Annotated[Count, "a breaker stays closed with fewer attempts in the window"] = 20
