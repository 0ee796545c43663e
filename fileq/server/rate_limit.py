"""How many requests each caller may send: a token bucket each, with a burst of twice the rate. Knows no clock but the
one it is given."""

from __future__ import annotations

import math
from collections.abc import Callable

from fileq.core.units import Rate
from fileq.server.problems import ApiProblem

BURST = 2
CALLERS_MAX = 10_000


class RateLimiter:
    """For one thread: the event loop's."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._per_s = rate.count / (rate.window_ms / 1000)
        self._burst = float(rate.count * BURST)
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def take(self, caller: str) -> None:
        """Raises ApiProblem, with the time to wait, for a request above the limit."""
        now_s = self._monotonic()
        tokens = self._tokens(caller, now_s)
        if tokens < 1:
            self._buckets[caller] = tokens, now_s
            wait_s = max(1, math.ceil((1 - tokens) / self._per_s))
            detail = f"the limit is {self._rate} (server.rate_limit); try again in {wait_s} s"
            raise ApiProblem("rate-limited", detail, retry_after_s=wait_s)
        if caller not in self._buckets and len(self._buckets) >= CALLERS_MAX:
            self._forget_full(now_s)
        self._buckets[caller] = tokens - 1, now_s

    def _tokens(self, caller: str, now_s: float) -> float:
        tokens, then_s = self._buckets.get(caller, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - then_s) * self._per_s)

    def _forget_full(self, now_s: float) -> None:
        """A bucket that is full again is as good as none."""
        full = [caller for caller in self._buckets if self._tokens(caller, now_s) >= self._burst]
        for caller in full or list(self._buckets)[: CALLERS_MAX // 10]:
            del self._buckets[caller]
