"""How many requests each caller may send, and how many logins may fail: token buckets, with a burst of twice the rate.
Knows no clock but the one it is given."""

from __future__ import annotations

import math
from collections.abc import Callable

from fileq.core.units import Rate
from fileq.server.client_address import client_network
from fileq.server.identity import BASIC, KEY
from fileq.server.problems import ApiProblem

BURST = 2
CALLERS_MAX = 10_000
OF_ADDRESS, OF_ALL = Rate(10, 60_000), Rate(100, 60_000)  # logins that may fail
FIRST_REPORT_S, NEXT_REPORT_S = 1.0, 600.0
_ADDRESSES_COUNTED = 1_000


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
        if wait_s := self.wait_s(caller):
            detail = f"the limit is {self._rate} (server.rate_limit); try again in {wait_s} s"
            raise ApiProblem("rate-limited", detail, retry_after_s=wait_s)
        self.spend(caller)

    def wait_s(self, caller: str) -> int:
        """How long until a request is within the limit; 0 if it is one now."""
        tokens = self._tokens(caller, self._monotonic())
        return max(1, math.ceil((1 - tokens) / self._per_s)) if tokens < 1 else 0

    def spend(self, caller: str) -> None:
        """Counts a request, whether it is within the limit or not."""
        now_s = self._monotonic()
        tokens = self._tokens(caller, now_s)
        if caller not in self._buckets and len(self._buckets) >= CALLERS_MAX:
            self._forget_full(now_s)
        self._buckets[caller] = max(0.0, tokens - 1), now_s

    def _tokens(self, caller: str, now_s: float) -> float:
        tokens, then_s = self._buckets.get(caller, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - then_s) * self._per_s)

    def _forget_full(self, now_s: float) -> None:
        """A bucket that is full again is as good as none."""
        full = [caller for caller in self._buckets if self._tokens(caller, now_s) >= self._burst]
        for caller in full or list(self._buckets)[: CALLERS_MAX // 10]:
            del self._buckets[caller]


class FailedLogins:
    """Limits how often a password or link can be tried in vain, and reports all failures: once for all that come
    together, however many, so that an attacker fills no log. Belongs to the event loop.

    Keys are too long to be guessed, so wrong ones are only reported: if they counted, a stranger's wrong keys would
    lock out those who know the password.

    `report` gets how many failed, from how many addresses, the last address, and how it tried. `call_later` is that of
    the event loop."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        report: Callable[[int, int, str, str], None],
    ) -> None:
        self._by_address = RateLimiter(OF_ADDRESS, monotonic)
        self._all = RateLimiter(OF_ALL, monotonic)
        self._monotonic = monotonic
        self._call_later = call_later
        self._report = report
        self._count = 0
        self._addresses: set[str] = set()
        self._last = ("", "")
        self._is_awaited = False
        self._reported_s = float("-inf")

    def check(self, address: str, *, is_password: bool = False) -> None:
        """Raises ApiProblem while too many logins have failed from the address. A password, which a person chose, also
        waits for the failures of all addresses together: an attacker may have many."""
        wait_s = max(self._by_address.wait_s(client_network(address)), self._all.wait_s("") if is_password else 0)
        if wait_s:
            raise ApiProblem(
                "rate-limited", f"too many logins have failed; try again in {wait_s} s", retry_after_s=wait_s
            )

    def failed(self, address: str, how: str) -> None:
        """`how` is KEY, BASIC, or "link"."""
        if how != KEY:
            self._by_address.spend(client_network(address))
        if how == BASIC:
            self._all.spend("")
        self._count += 1
        self._last = address, how
        if len(self._addresses) < _ADDRESSES_COUNTED:
            self._addresses.add(address)
        if not self._is_awaited:
            self._is_awaited = True
            next_s = self._reported_s + NEXT_REPORT_S - self._monotonic()
            self._call_later(max(FIRST_REPORT_S, next_s), self.flush)

    def flush(self) -> None:
        """Reports what has not been reported."""
        self._is_awaited = False
        if self._count:
            count, self._count = self._count, 0
            addresses, self._addresses = len(self._addresses), set()
            self._reported_s = self._monotonic()
            self._report(count, addresses, *self._last)
