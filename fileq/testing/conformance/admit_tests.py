"""admit: the limits of a route. How many of its jobs run in all workers, and how many start in a window."""

from typing import Any

import pytest

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Admission, AdmitRequest, AdmitResult
from fileq.core.job import Claim
from fileq.core.settlement import Verb, complete
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    UNDECODABLE,
    claim_one,
    claims_of,
    enqueue,
    expire_leases,
    names,
    reap_all,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

ADMITTED, FULL, THROTTLED, LOST = AdmitResult.ADMITTED, AdmitResult.FULL, AdmitResult.THROTTLED, AdmitResult.LOST
HOUR_MS = 3_600_000


def ask(claim: Claim, *, route: str = "mail", **limits: int) -> AdmitRequest:
    return AdmitRequest(route, claim.slot, claim.raw, **limits)


def admit(harness: Harness, *claims: Claim, broker: FullBroker | None = None, **options: Any) -> list[AdmitResult]:
    answers = (broker or harness.broker).admit([ask(claim, **options) for claim in claims])
    assert all((answer.wait_ms == 0) == (answer.result is ADMITTED) for answer in answers)
    return [answer.result for answer in answers]


def claimed(harness: Harness, count: int, prefix: str = "w") -> list[Claim]:
    """As many jobs, each held by a slot of its own."""
    enqueue(harness, *names(count, prefix))
    return claims_of(harness, *(f"{prefix}{i}" for i in range(count)))


def test_no_requests_get_no_answers(harness: Harness) -> None:
    assert harness.broker.admit([]) == []


def test_as_many_as_the_limit_are_admitted_in_the_order_of_the_call(harness: Harness) -> None:
    first, second, third = claimed(harness, 3)
    assert admit(harness, second, first, third, max_running_total=2) == [ADMITTED, ADMITTED, FULL]
    assert admit(harness, third, max_running_total=2) == [FULL]


def test_a_job_that_is_admitted_again_needs_no_second_permit(harness: Harness) -> None:
    """The reply was lost, and the worker asks again."""
    first, second = claimed(harness, 2)
    for _ in range(3):
        assert admit(harness, first, max_running_total=2, rate=2) == [ADMITTED]
    assert admit(harness, second, max_running_total=2, rate=2) == [ADMITTED]
    assert admit(harness, first, second, first, max_running_total=2, rate=2) == [ADMITTED] * 3


def test_a_refused_job_reserves_nothing(harness: Harness) -> None:
    first, second, third = claimed(harness, 3)
    assert admit(harness, first, second, max_running_total=1) == [ADMITTED, FULL]
    settle(harness, complete(first))
    assert admit(harness, third, second, max_running_total=1) == [ADMITTED, FULL]


@pytest.mark.parametrize("verb", EVERY_SETTLEMENT)
def test_every_settlement_frees_the_permit(harness: Harness, verb: Verb) -> None:
    first, second = claimed(harness, 2)
    assert admit(harness, first, second, max_running_total=1) == [ADMITTED, FULL]
    settle(harness, EVERY_SETTLEMENT[verb](first))
    assert admit(harness, second, max_running_total=1) == [ADMITTED]


def test_a_dead_slot_holds_its_permit_until_it_is_reaped(harness: Harness) -> None:
    [first] = claimed(harness, 1, "dead")
    assert admit(harness, first, max_running_total=1) == [ADMITTED]
    expire_leases(harness)
    [second] = claimed(harness, 1, "alive")
    assert admit(harness, second, max_running_total=1) == [FULL]
    reap_all(harness)
    assert admit(harness, second, max_running_total=1) == [ADMITTED]


def test_a_slot_that_leaves_frees_its_permit(harness: Harness) -> None:
    first, second = claimed(harness, 2)
    assert admit(harness, first, second, max_running_total=1) == [ADMITTED, FULL]
    harness.broker.deregister([first.slot])
    assert admit(harness, second, max_running_total=1) == [ADMITTED]


def test_the_next_job_of_a_slot_does_not_inherit_its_permit(harness: Harness) -> None:
    first, second = claimed(harness, 2)
    assert admit(harness, first, max_running_total=1) == [ADMITTED]
    enqueue(harness, "other")
    [other] = harness.broker.settle_and_claim([complete(first)], [first.slot]).claims
    assert admit(harness, second, other, max_running_total=1) == [ADMITTED, FULL]


def test_a_slot_that_lost_its_job_is_not_admitted(harness: Harness) -> None:
    first, second = claimed(harness, 2)
    settle(harness, complete(first))
    assert admit(harness, first, max_running_total=1, rate=1) == [LOST]
    unknown = AdmitRequest("mail", "unknown", first.raw, max_running_total=1)
    other = AdmitRequest("mail", second.slot, first.raw, max_running_total=1)
    assert [answer.result for answer in harness.broker.admit([unknown, other])] == [LOST, LOST]
    assert admit(harness, second, max_running_total=1, rate=1) == [ADMITTED]


def test_a_lower_limit_counts_the_jobs_that_were_admitted_before(harness: Harness) -> None:
    first, second, third, fourth = claimed(harness, 4)
    assert admit(harness, first, second, third, max_running_total=3) == [ADMITTED] * 3
    settle(harness, complete(first))
    assert admit(harness, fourth, max_running_total=2) == [FULL]
    assert admit(harness, second, max_running_total=2) == [ADMITTED], "it runs already"
    settle(harness, complete(second))
    assert admit(harness, fourth, max_running_total=2) == [ADMITTED]


@pytest.mark.parametrize("route", ["**/*.{pdf,txt}", "other:mail", "ä \n'\"%s", "x" * 500])
def test_each_route_has_limits_of_its_own(harness: Harness, route: str) -> None:
    first, second, third = claimed(harness, 3)
    requests = [ask(first, max_running_total=1, rate=1), ask(second, route=route, max_running_total=1, rate=1)]
    assert harness.broker.admit(requests) == [Admission(ADMITTED)] * 2
    requests = [ask(third, max_running_total=1), ask(third, route=route, max_running_total=1)]
    assert [answer.result for answer in harness.broker.admit(requests)] == [FULL, FULL]


def test_bytes_that_are_not_a_job_can_be_holders(harness: Harness) -> None:
    register(harness, "w1")
    harness.push_raw("low", UNDECODABLE["random bytes"])
    claim = claim_one(harness)
    assert admit(harness, claim, claim, max_running_total=1, rate=1) == [ADMITTED, ADMITTED]


def test_all_workers_share_the_limits(harness: Harness) -> None:
    other = harness.another()
    first, second, third = claimed(harness, 3)
    assert admit(harness, first, max_running_total=2, rate=2) == [ADMITTED]
    assert admit(harness, second, third, max_running_total=2, rate=2, broker=other) == [ADMITTED, FULL]


def test_two_workers_at_the_same_time_never_exceed_the_limit(harness: Harness) -> None:
    other = harness.another()
    claims = claimed(harness, 20)

    def admitted(broker: FullBroker, mine: list[Claim]) -> int:
        return sum(admit(harness, claim, max_running_total=7, broker=broker) == [ADMITTED] for claim in mine)

    found = run_concurrently(lambda: admitted(harness.broker, claims[:10]), lambda: admitted(other, claims[10:]))
    assert sum(found) == 7


def test_nothing_that_operators_see_changes(harness: Harness) -> None:
    claims = claimed(harness, 3)
    ids = [claim.id for claim in claims]
    before = snapshot(harness, *ids)
    admit(harness, *claims, max_running_total=1, rate=1)
    assert snapshot(harness, *ids) == before


# the rate


def test_no_more_than_the_rate_start_in_a_window(harness: Harness) -> None:
    first, second, third, fourth, fifth = claimed(harness, 5)
    assert admit(harness, first, second, third, rate=2) == [ADMITTED, ADMITTED, THROTTLED]
    settle(harness, complete(first))
    assert admit(harness, third, fourth, rate=2) == [THROTTLED] * 2, "an ended job has started all the same"
    harness.advance(1)
    assert admit(harness, third, fourth, fifth, rate=2) == [ADMITTED, ADMITTED, THROTTLED]


def test_the_window_begins_with_its_first_job_and_refusals_do_not_prolong_it(harness: Harness) -> None:
    first, second, third = claimed(harness, 3)
    harness.advance(0.6)
    assert admit(harness, first, rate=2) == [ADMITTED]
    harness.advance(0.6)
    assert admit(harness, second, third, rate=2) == [ADMITTED, THROTTLED]
    harness.advance(0.399)
    assert admit(harness, third, rate=2) == [THROTTLED]
    harness.advance(0.001)
    assert admit(harness, third, rate=2) == [ADMITTED]


def test_the_wait_is_the_rest_of_the_window(harness: Harness) -> None:
    first, second = claimed(harness, 2)
    assert admit(harness, first, rate=1, window_ms=HOUR_MS) == [ADMITTED]
    harness.advance(600)
    [answer] = harness.broker.admit([ask(second, rate=1, window_ms=HOUR_MS)])
    assert answer.result is THROTTLED
    assert answer.wait_ms == HOUR_MS - 600_000 if harness.is_exact else 0 < answer.wait_ms <= HOUR_MS - 600_000


def test_a_job_that_a_full_route_refuses_uses_nothing_of_its_rate(harness: Harness) -> None:
    first, second, third = claimed(harness, 3)
    assert admit(harness, first, second, third, max_running_total=1, rate=2) == [ADMITTED, FULL, FULL]
    settle(harness, complete(first))
    assert admit(harness, second, max_running_total=1, rate=2) == [ADMITTED]
    settle(harness, complete(second))
    assert admit(harness, third, max_running_total=1, rate=2) == [THROTTLED]


def test_a_job_that_the_rate_refuses_is_no_holder(harness: Harness) -> None:
    first, second, third = claimed(harness, 3)
    assert admit(harness, first, second, max_running_total=2, rate=1) == [ADMITTED, THROTTLED]
    assert admit(harness, third, max_running_total=2) == [ADMITTED]


def test_a_window_that_is_longer_than_the_rate_says_has_ended(harness: Harness) -> None:
    """The rate was 1/h, and an operator made it 1/s: no job waits for the hour."""
    first, second, third = claimed(harness, 3)
    assert admit(harness, first, rate=1, window_ms=HOUR_MS) == [ADMITTED]
    assert admit(harness, second, third, rate=1) == [ADMITTED, THROTTLED]
    harness.advance(1)
    assert admit(harness, third, rate=1) == [ADMITTED]


def test_a_job_of_a_rate_that_is_admitted_again_in_a_later_window_uses_no_permit_of_it(harness: Harness) -> None:
    first, second = claimed(harness, 2)
    assert admit(harness, first, rate=1) == [ADMITTED]
    harness.advance(1)
    assert admit(harness, first, second, first, rate=1) == [ADMITTED] * 3


def test_the_next_job_of_a_slot_uses_a_permit_of_the_rate(harness: Harness) -> None:
    [first] = claimed(harness, 1)
    assert admit(harness, first, rate=2, window_ms=HOUR_MS) == [ADMITTED]
    enqueue(harness, "second", "third")
    [second] = harness.broker.settle_and_claim([complete(first)], [first.slot]).claims
    assert admit(harness, second, rate=2, window_ms=HOUR_MS) == [ADMITTED]
    [third] = harness.broker.settle_and_claim([complete(second)], [first.slot]).claims
    assert admit(harness, third, rate=2, window_ms=HOUR_MS) == [THROTTLED]


def test_many_jobs_of_one_slot_one_after_the_other(harness: Harness) -> None:
    """Each replaces the holder of the one before."""
    for id in names(30):
        claim = running(harness, id)
        assert admit(harness, claim, max_running_total=1, rate=50, window_ms=HOUR_MS) == [ADMITTED]
        settle(harness, complete(claim))
    [last] = claimed(harness, 1)
    assert admit(harness, last, rate=30, window_ms=HOUR_MS) == [THROTTLED]
    assert admit(harness, last, rate=31, window_ms=HOUR_MS) == [ADMITTED]


def test_hundreds_in_one_call(harness: Harness) -> None:
    claims = claimed(harness, 400)
    assert admit(harness, *claims, max_running_total=300) == [ADMITTED] * 300 + [FULL] * 100
    assert admit(harness, *claims, max_running_total=300) == [ADMITTED] * 300 + [FULL] * 100
