"""orders, finish_orders: what is still to be done with the files of ended jobs, and where the files are afterwards."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fileq.brokers.types import Revival, Revived
from fileq.core.job import Claim, State, encode
from fileq.core.settlement import Settlement, SettleResult, complete
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claims_of,
    completed,
    dead,
    drift,
    enqueue,
    expire_leases,
    reap_all,
    record_of,
    running,
    snapshot,
)
from fileq.testing.conformance.harness import Harness

ODD = b'/done/\xff \n "b"'


def test_the_records_of_completed_and_dead_jobs_have_the_new_paths(harness: Harness) -> None:
    completed(harness, "completed")
    dead(harness, "dead")
    assert harness.broker.finish_orders([("completed", ODD), ("dead", b"/failed/b")]) == [True, True]
    records = [record_of(harness, id) for id in ("completed", "dead")]
    assert [(record.state, record.moved_to) for record in records] == [
        (State.COMPLETED, ODD),
        (State.DEAD, b"/failed/b"),
    ]
    assert drift(harness) == 0


def test_a_job_that_has_not_ended_or_is_unknown_stays_as_it_is(harness: Harness) -> None:
    running(harness, "running")
    enqueue(harness, "pending")
    enqueue(harness, "scheduled", delay_ms=60_000)
    ids = ["running", "pending", "scheduled", "unknown"]
    before = snapshot(harness, *ids)
    assert harness.broker.finish_orders([(id, b"/done/a") for id in ids]) == [False] * 4
    assert snapshot(harness, *ids) == before


def test_the_last_path_counts_and_a_repeat_changes_nothing(harness: Harness) -> None:
    completed(harness, "a")
    assert harness.broker.finish_orders([("a", b"/1"), ("a", b"/2")]) == [True, True]
    before = snapshot(harness, "a")
    assert harness.broker.finish_orders([("a", b"/2")]) == [True]
    assert snapshot(harness, "a") == before
    assert record_of(harness, "a").moved_to == b"/2"


def test_no_moves_change_nothing(harness: Harness) -> None:
    assert harness.broker.finish_orders([]) == []


def test_more_than_a_batch(harness: Harness) -> None:
    completed(harness, "a")
    moves = [("a", b"/%d" % n) for n in range(1200)]
    assert harness.broker.finish_orders(moves) == [True] * 1200
    assert record_of(harness, "a").moved_to == b"/1199"


# orders

BODY = b'complete 1-2\n/in/\xff\n"a" '


def ordered(
    harness: Harness, id: str, make: Callable[[Claim], Settlement] = complete, *, body: bytes = BODY, slot: str = "w1"
) -> Settlement:
    """A job whose settlement has an order."""
    settlement = replace(make(running(harness, id, slot=slot)), order=body)
    assert harness.broker.settle_and_claim([settlement], []).settled == (SettleResult.DONE,)
    return settlement


def left(harness: Harness, older_than_ms: int = 1000) -> list[str]:
    return sorted(order.id for order in harness.broker.orders(older_than_ms))


@pytest.mark.parametrize("make", [complete, burial], ids=["complete", "bury"])
def test_a_settlement_leaves_its_order(harness: Harness, make: Callable[[Claim], Settlement]) -> None:
    ordered(harness, "a", make)
    assert left(harness) == []  # its slot is alive, and it is new
    harness.advance(2)
    [order] = harness.another().orders(1000)
    assert (order.id, order.slot, order.body) == ("a", "w1", BODY)
    assert order.at_ms == record_of(harness, "a").ended_ms
    assert left(harness, 3000) == []


def test_the_order_of_a_slot_that_is_not_registered_is_found_at_once(harness: Harness) -> None:
    ordered(harness, "a")
    harness.broker.deregister(["w1"])
    assert left(harness) == ["a"]


def test_the_order_of_a_reaped_slot_is_found_at_once(harness: Harness) -> None:
    ordered(harness, "a")
    expire_leases(harness)
    reap_all(harness)
    assert left(harness, 3_600_000) == ["a"]


def test_the_order_of_a_job_that_a_reaper_buries_is_found_at_once(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    settlement = replace(burial(suspect.claims[0], died=True), order=BODY)
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.DONE,)
    [order] = harness.another().orders(3_600_000)
    assert (order.id, order.slot, order.at_ms, order.body) == ("a", "w1", record_of(harness, "a").ended_ms, BODY)
    assert harness.broker.finish_orders([("a", b"/failed/a")]) == [True]
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.FENCED,)
    assert left(harness, -1) == []
    assert drift(harness) == 0


def test_a_live_slot_is_not_reaped_and_leaves_no_order(harness: Harness) -> None:
    claim = running(harness, "a")
    assert harness.broker.reap("w1", [replace(burial(claim, died=True), order=BODY)]) == (SettleResult.FENCED,)
    assert left(harness, -1) == []


def test_a_settlement_without_an_order_leaves_none(harness: Harness) -> None:
    completed(harness, "a")
    dead(harness, "b")
    harness.advance(2)
    assert left(harness) == []


def test_a_fenced_settlement_leaves_no_order(harness: Harness) -> None:
    claim = running(harness, "a")
    expire_leases(harness)
    reap_all(harness)
    late = replace(complete(claim), order=BODY)
    assert harness.broker.settle_and_claim([late], []).settled == (SettleResult.FENCED,)
    assert left(harness) == []


def test_a_finished_order_is_gone_and_a_repeat_of_its_settlement_does_not_bring_it_back(harness: Harness) -> None:
    settlement = ordered(harness, "a")
    assert harness.broker.finish_orders([("a", b"/done/a")]) == [True]
    assert harness.broker.finish_orders([("a", b"")]) == [True]
    assert record_of(harness, "a").moved_to == b"/done/a"
    assert harness.broker.settle_and_claim([settlement], []).settled == (SettleResult.DONE_ALREADY,)
    harness.advance(2)
    assert left(harness) == []


def test_a_later_settlement_replaces_the_order_and_a_revival_removes_it(harness: Harness) -> None:
    raw = ordered(harness, "a", burial).next_raw
    assert harness.broker.revive([Revival(raw, "a", encode(a_job("a")), "low")]) == [Revived(True)]
    harness.advance(2)
    assert left(harness) == []
    [claim] = harness.broker.settle_and_claim([], ["w1"]).claims
    harness.broker.settle_and_claim([replace(complete(claim), order=b"second")], [])
    harness.advance(2)
    assert [order.body for order in harness.broker.orders(1000)] == [b"second"]


def test_an_order_of_a_job_without_a_record_can_be_finished(harness: Harness) -> None:
    ordered(harness, "a", burial)
    harness.broker.discard([("a", harness.broker.peek("dead_letter", 1)[0])])
    harness.advance(2)
    assert left(harness) == ["a"]
    assert harness.broker.finish_orders([("a", b"/failed/a")]) == [False]
    assert left(harness) == []


def test_more_orders_than_a_page(harness: Harness) -> None:
    ids = [f"a{n:04}" for n in range(600)]
    enqueue(harness, *ids)
    claims = claims_of(harness, *(f"w{id}" for id in ids))
    harness.broker.settle_and_claim([replace(complete(claim), order=BODY) for claim in claims], [])
    harness.advance(2)
    assert left(harness) == ids
    harness.broker.finish_orders([(id, b"") for id in ids])
    assert left(harness) == []


@pytest.mark.parametrize("killed_before", ["settle", "finish", "end"])
def test_killed_between_any_two_calls_the_job_has_not_ended_or_has_its_order_or_its_path(
    harness: Harness, killed_before: str
) -> None:
    claim = running(harness, "a")
    if killed_before != "settle":
        harness.broker.settle_and_claim([replace(complete(claim), order=BODY)], [])
    if killed_before == "end":
        harness.broker.finish_orders([("a", b"/done/a")])
    expire_leases(harness)
    reap_all(harness)
    record = record_of(harness, "a")
    expected = {
        "settle": (State.PENDING, [], b""),
        "finish": (State.COMPLETED, ["a"], b""),
        "end": (State.COMPLETED, [], b"/done/a"),
    }
    assert (record.state, left(harness), record.moved_to) == expected[killed_before]
