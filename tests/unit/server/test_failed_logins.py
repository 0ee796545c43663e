"""Failed logins: how often an address may try, and how many entries they make. With a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fileq.server.authentication import FIRST_REPORT_S, NEXT_REPORT_S, FailedLogins
from fileq.server.limits import CALLERS_MAX
from fileq.server.problems import ApiProblem


class Bench:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.reports: list[tuple[int, int, str, str]] = []
        self.logins = FailedLogins(
            lambda: self.now_s,
            lambda after_s, call: self.timers.append((self.now_s + after_s, call)),
            lambda *report: self.reports.append(report),
        )

    def is_held_up(self, address: str, *, is_password: bool = True) -> bool:
        try:
            self.logins.check(address, is_password=is_password)
        except ApiProblem as problem:
            return problem.slug == "rate-limited"
        return False

    def fire(self) -> float:
        """The next timer. Returns its time."""
        self.now_s, call = self.timers.pop(0)
        call()
        return self.now_s


def test_many_addresses_together_have_a_limit_for_passwords_and_take_bounded_memory() -> None:
    """Medium: password guessing unlimited."""
    bench = Bench()
    for number in range(3 * CALLERS_MAX):
        bench.logins.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "basic")
    assert bench.is_held_up("192.0.2.7"), "an address that never failed: of passwords there is one limit for all"
    assert not bench.is_held_up("192.0.2.7", is_password=False), "a link of another address is not locked out"
    assert len(bench.logins._by_address._buckets) <= CALLERS_MAX
    assert len(bench.logins._addresses) <= 1000
    bench.now_s += 3600
    assert not bench.is_held_up("192.0.2.7")


def test_an_ipv6_address_is_its_network_and_a_mapped_one_is_the_ipv4_address() -> None:
    bench = Bench()
    for number in range(20):
        bench.logins.failed(f"2001:db8::{number:x}", "link")
        bench.logins.failed("::ffff:192.0.2.1", "link")
    assert bench.is_held_up("2001:db8::ffff", is_password=False)
    assert not bench.is_held_up("2001:db8:0:1::1", is_password=False)
    assert bench.is_held_up("192.0.2.1", is_password=False)


@pytest.mark.parametrize("failures", [1, 5000])
def test_failures_that_come_together_are_one_report(failures: int) -> None:
    """Medium: password guessing unlogged; an attacker must not fill the audit."""
    bench = Bench()
    for _ in range(failures):
        bench.logins.failed("192.0.2.1", "basic")
    assert bench.fire() == FIRST_REPORT_S
    assert bench.reports == [(failures, 1, "192.0.2.1", "basic")]
    bench.logins.failed("192.0.2.2", "link")
    bench.logins.failed("192.0.2.2", "link")
    assert bench.fire() == FIRST_REPORT_S + NEXT_REPORT_S, "the next one not before"
    assert bench.reports[1:] == [(2, 1, "192.0.2.2", "link")]
    assert not bench.timers
    bench.logins.flush()
    assert len(bench.reports) == 2, "there is nothing left to report"
