"""The breakers of a worker, one for each route. The test moves the clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fileq.config.schema import CircuitBreakerSettings
from fileq.worker.breakers import REFRESH_S, Breakers, reason_of
from tests.support.clocks import ManualClocks, RecordedEvents

PDF, MAIL = 0, 1
SETTINGS = CircuitBreakerSettings(min_samples=4, cooldown_period=30.0)
DISABLED = CircuitBreakerSettings(enabled=False)


def waiting_jobs(end: Callable[[str], None], count: Callable[[str], int]) -> Any:
    """Stands for Deferrals."""
    return SimpleNamespace(end=end, count=count, request_search=lambda: None)


class Setup:
    def __init__(self, pdf: CircuitBreakerSettings = SETTINGS, mail: CircuitBreakerSettings = SETTINGS) -> None:
        self.clocks = ManualClocks()
        self.events = RecordedEvents()
        self.ended: list[str] = []
        self.deferred = dict.fromkeys(map(reason_of, ("**/*.pdf", "mail")), 0)
        self.breakers = Breakers(
            [("**/*.pdf", pdf), ("mail", mail)],
            waiting_jobs(self.ended.append, self.deferred.__getitem__),
            clock=self.clocks.monotonic,
            emit=self.events,
        )

    def fail(self, *routes: int) -> None:
        for route in routes:
            for n in range(4):
                self.breakers.record(route, f"{route}-{n}", False, f"ValueError: page {n}")


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_a_failing_route_does_not_stop_the_others(setup: Setup) -> None:
    setup.fail(PDF)
    assert (setup.breakers.admits(PDF, "a"), setup.breakers.admits(MAIL, "b")) == (False, True)
    assert setup.breakers.permits(16) == 16
    assert setup.breakers.numbers() == [("**/*.pdf", 2), ("mail", 0)]
    assert (setup.breakers.state, setup.breakers.is_limiting, setup.breakers.is_closed) == ("open", False, False)


def test_the_events_and_the_registry_name_the_route_the_error_and_the_next_probe(setup: Setup) -> None:
    setup.breakers.record(PDF, "ok", True)
    setup.fail(PDF)
    assert setup.events.fields("breaker.opened") == {
        **{"level": "warning", "was": "closed", "route": "**/*.pdf", "error": "ValueError: page 2"},
        **{"failure_share": 0.75, "next_probe_s": 30.0},
    }
    [shown] = setup.breakers.open_ones()
    assert (shown.route, shown.state, shown.error, shown.failure_share) == (
        *("**/*.pdf", "open", "ValueError: page 2", 0.75),
    )
    assert shown.next_probe_ms > 0


def test_after_the_cooldown_the_next_job_of_the_route_is_the_probe_and_the_others_wait(setup: Setup) -> None:
    setup.fail(PDF)
    assert setup.breakers.wait_s(PDF) == 30.0
    setup.clocks.advance(30)
    assert [setup.breakers.admits(PDF, claim) for claim in ("probe", "other")] == [True, False]
    assert setup.breakers.wait_s(PDF) == 0.0
    setup.breakers.record(PDF, "other", True)
    assert setup.ended == [], "only the probe decides"
    setup.breakers.record(PDF, "probe", True)
    assert setup.ended == [setup.breakers.reason(PDF)]
    assert setup.breakers.admits(PDF, "next")
    assert [setup.events.count(name) for name in ("breaker.half_opened", "breaker.closed")] == [1, 1]
    assert (setup.breakers.open_ones(), setup.breakers.is_closed) == ((), True)


def test_a_probe_that_fails_starts_the_next_cooldown_with_its_error(setup: Setup) -> None:
    setup.fail(PDF)
    setup.clocks.advance(30)
    setup.breakers.admits(PDF, "probe")
    setup.breakers.record(PDF, "probe", False, "OSError: full")
    assert setup.breakers.wait_s(PDF) == 30.0
    assert (setup.breakers.open_ones()[0].error, setup.breakers.open_ones()[0].failure_share) == ("OSError: full", 1.0)


def test_a_job_that_an_operator_tries_does_not_wait_for_the_cooldown_and_decides(setup: Setup) -> None:
    setup.fail(PDF)
    assert [setup.breakers.admits(PDF, claim, is_probe=claim == "tried") for claim in ("other", "tried", "third")] == [
        *(False, True, False),
    ]
    setup.breakers.record(PDF, "tried", False, "OSError: full")
    assert (setup.breakers.wait_s(PDF), setup.breakers.open_ones()[0].error) == (30.0, "OSError: full")
    assert setup.breakers.admits(PDF, "tried again", is_probe=True)
    setup.breakers.record(PDF, "tried again", True)
    assert setup.ended == [setup.breakers.reason(PDF)]


def test_a_job_that_an_operator_tries_beside_a_probe_runs_and_decides_nothing(setup: Setup) -> None:
    setup.fail(PDF)
    setup.clocks.advance(30)
    assert setup.breakers.admits(PDF, "probe")
    assert setup.breakers.admits(PDF, "tried", is_probe=True)
    setup.breakers.record(PDF, "tried", True)
    assert setup.ended == []
    setup.breakers.record(PDF, "probe", True)
    assert setup.ended == [setup.breakers.reason(PDF)]


def test_a_probe_that_says_nothing_is_replaced_by_the_next_job(setup: Setup) -> None:
    setup.fail(PDF)
    setup.clocks.advance(30)
    setup.breakers.admits(PDF, "probe")
    setup.breakers.record(PDF, "probe", None)
    assert setup.breakers.admits(PDF, "next")


def test_while_every_breaker_is_open_claims_stop_until_the_first_cooldown_ends(setup: Setup) -> None:
    setup.fail(PDF)
    setup.clocks.advance(10)
    setup.fail(MAIL)
    assert (setup.breakers.is_limiting, setup.breakers.permits(16), setup.breakers.next_probe_s()) == (True, 0, 20.0)
    setup.clocks.advance(20)
    assert [setup.breakers.permits(16) for _ in range(3)] == [1, 1, 1], "one a turn until a probe is found"
    assert setup.breakers.admits(MAIL, "other") is False
    assert setup.breakers.admits(PDF, "probe") is True
    assert setup.breakers.permits(16) == 0, "the probe decides"
    assert setup.breakers.next_probe_s() == 10.0
    setup.breakers.record(PDF, "probe", True)
    assert setup.breakers.permits(16) == 16


def test_a_disabled_breaker_never_opens_and_keeps_the_claims_going() -> None:
    setup = Setup(mail=DISABLED)
    setup.fail(PDF, MAIL)
    assert setup.breakers.admits(MAIL, "a")
    assert (setup.breakers.is_limiting, setup.breakers.permits(16)) == (False, 16)
    assert setup.breakers.numbers() == [("**/*.pdf", 2), ("mail", 0)]


def test_a_reset_closes_the_breaker_of_its_route_once(setup: Setup) -> None:
    setup.breakers.apply_resets({"mail": 3})
    setup.fail(PDF, MAIL)
    setup.breakers.apply_resets({"mail": 3})
    assert setup.ended == [], "that reset is older than this worker"
    setup.breakers.apply_resets({"mail": 4})
    assert setup.ended == [setup.breakers.reason(MAIL)]
    assert (setup.breakers.admits(MAIL, "a"), setup.breakers.admits(PDF, "b")) == (True, False)
    setup.fail(MAIL)
    setup.breakers.apply_resets({"mail": 4})
    assert setup.breakers.admits(MAIL, "c") is False


def test_a_reset_of_all_routes_closes_every_breaker(setup: Setup) -> None:
    setup.breakers.apply_resets({})
    setup.fail(PDF, MAIL)
    setup.breakers.apply_resets({"": 1})
    assert (setup.breakers.state, len(setup.ended)) == ("closed", 2)


def test_routes_of_fileq_itself_have_no_breaker_and_do_not_keep_claims_going() -> None:
    breakers = Breakers([("a", CircuitBreakerSettings(min_samples=1))], waiting_jobs(print, len))
    assert breakers.admits(1, "claim")
    breakers.record(1, "claim", False)
    assert (breakers.is_closed, breakers.numbers()) == (True, [("a", 0)])
    breakers.record(0, "claim", False)
    assert (breakers.is_limiting, breakers.permits(4), breakers.admits(1, "another")) == (True, 0, True)


def test_a_breaker_whose_route_has_no_jobs_for_a_window_closes(setup: Setup) -> None:
    """Without another route, and with one: then it was never half-open."""
    setup.fail(PDF)
    setup.clocks.advance(59)
    setup.breakers.refresh()
    assert setup.breakers.state == "open"
    setup.clocks.advance(1)
    setup.breakers.refresh()
    assert setup.ended == [reason_of("**/*.pdf")]
    closed = setup.events.fields("breaker.closed")
    assert (closed["route"], closed["was"]) == ("**/*.pdf", "open")
    assert (setup.breakers.numbers(), setup.breakers.open_ones()) == ([("**/*.pdf", 0), ("mail", 0)], ())
    setup.fail(PDF, MAIL)
    setup.clocks.advance(30)
    assert setup.breakers.permits(16) == 1
    setup.clocks.advance(30)
    setup.breakers.refresh()
    assert (setup.breakers.state, setup.breakers.permits(16)) == ("closed", 16)


def test_a_breaker_that_defers_jobs_does_not_close_by_itself(setup: Setup) -> None:
    setup.fail(PDF)
    setup.deferred[reason_of("**/*.pdf")] = 7
    setup.clocks.advance(3600)
    setup.breakers.refresh()
    assert setup.breakers.state == "open"
    assert (setup.breakers.open_ones()[0].deferred, setup.breakers.deferred_numbers()) == (
        *(7, [("**/*.pdf", 7), ("mail", 0)]),
    )


def test_a_change_of_the_number_of_deferred_jobs_is_registered_at_most_once_a_second(setup: Setup) -> None:
    setup.fail(PDF)
    setup.breakers.refresh()
    before = setup.breakers.change_count
    setup.deferred[reason_of("**/*.pdf")] = 1
    setup.breakers.refresh()
    assert setup.breakers.change_count == before
    setup.clocks.advance(REFRESH_S)
    setup.breakers.refresh()
    assert setup.breakers.change_count == before + 1
    setup.clocks.advance(REFRESH_S)
    setup.breakers.refresh()
    assert setup.breakers.change_count == before + 1


def test_a_job_that_is_retried_again_and_again_does_not_open_the_breaker(setup: Setup) -> None:
    for attempt in range(20):
        setup.breakers.record(PDF, f"claim-{attempt}", False, "ValueError: bad", "bad.pdf")
    assert setup.breakers.is_closed


def test_a_job_that_has_failed_waits_until_others_could_be_the_probe(setup: Setup) -> None:
    setup.fail(PDF)
    assert (setup.breakers.wait_s(PDF), setup.breakers.wait_s(PDF, has_failed=True)) == (30.0, 31.0)
    setup.clocks.advance(30)
    assert not setup.breakers.admits(PDF, "failed", has_failed=True)
    assert setup.breakers.admits(PDF, "new")
