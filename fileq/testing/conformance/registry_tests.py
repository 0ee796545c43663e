"""register and deregister: the known slots; a slot that leaves gives its job back."""

from fileq.brokers.types import OpenBreaker
from fileq.core.job import State
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    foreign,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    register,
    running,
    settle,
    snapshot,
    worker_info,
)
from fileq.testing.conformance.harness import Harness


def test_registering_nothing_changes_nothing(harness: Harness) -> None:
    harness.broker.register({})
    harness.broker.deregister([])
    assert harness.broker.workers() == []


def test_a_registered_slot_is_listed_with_its_description(harness: Harness) -> None:
    info = worker_info(
        host="beta",
        pid=7,
        started_ms=123,
        version="2.0",
        queues=("high",),
        breaker="half-open",
        is_claiming=False,
        breakers=(OpenBreaker("**/*.pdf", "open", "ValueError", 0.5, 17),),
    )
    harness.broker.register({"w1": info})
    [view] = harness.broker.workers()
    assert (view.slot, view.info, view.is_alive, view.raw) == ("w1", info, True, b"")
    assert harness.broker.census().heartbeats == 1


def test_slots_are_listed_in_order(harness: Harness) -> None:
    register(harness, "w3", "w1", "w2")
    assert [view.slot for view in harness.broker.workers()] == ["w1", "w2", "w3"]


def test_a_slot_is_listed_with_the_time_that_is_left_of_its_heartbeat(harness: Harness) -> None:
    register(harness, "w1")
    [view] = harness.broker.workers()
    assert 20_000 < view.left_ms <= 30_000
    if harness.is_exact:
        harness.advance(12)
        assert [view.left_ms for view in harness.broker.workers()] == [18_000]
        harness.broker.renew([("w1", b"")])
        assert [view.left_ms for view in harness.broker.workers()] == [30_000]
    expire_leases(harness)
    assert [(view.is_alive, view.left_ms) for view in harness.broker.workers()] == [(False, 0)]


def test_a_working_slot_shows_its_job(harness: Harness) -> None:
    claim = running(harness, "a")
    [view] = harness.broker.workers()
    assert view.raw == claim.raw


def test_registering_again_changes_only_the_description(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.register({"w1": worker_info(breaker="open")})
    [view] = harness.broker.workers()
    assert (view.info.breaker, view.raw) == ("open", claim.raw)
    assert settle(harness, complete(claim)) is SettleResult.DONE


def test_registering_again_is_not_a_heartbeat(harness: Harness) -> None:
    """Only renew prolongs the lease of a busy slot, and it also returns what the slot holds."""
    running(harness, "a")
    harness.advance(20)
    register(harness, "w1")
    harness.advance(10)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w1"]


def test_a_new_slot_lives_for_exactly_one_ttl(harness: Harness) -> None:
    register(harness, "w1")
    harness.advance(29.999)
    [view] = harness.broker.workers()
    assert view.is_alive
    harness.advance(0.001)
    [view] = harness.broker.workers()
    assert not view.is_alive
    assert harness.broker.census().heartbeats == 0


def test_a_slot_without_a_heartbeat_is_still_listed(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    [view] = harness.broker.workers()
    assert (view.slot, view.is_alive) == ("w1", False)


def test_a_slot_that_registers_again_after_its_lease_ended_is_alive(harness: Harness) -> None:
    register(harness, "w1")
    expire_leases(harness)
    register(harness, "w1")
    assert harness.broker.suspects() == []


def test_a_deregistered_slot_leaves_nothing_behind(harness: Harness) -> None:
    register(harness, "w1", "w2")
    harness.broker.deregister(["w1"])
    assert [view.slot for view in harness.broker.workers()] == ["w2"]
    assert harness.broker.census().heartbeats == 1
    assert harness.broker.suspects(sweep=True) == []


def test_what_a_deregistered_slot_held_goes_to_the_front_of_its_queue(harness: Harness) -> None:
    enqueue(harness, "a", "b", queue="high")
    enqueue(harness, "c")
    claim = claim_one(harness)
    harness.broker.deregister(["w1"])
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["a", "b"], ["c"])
    assert raws_in(harness, "high")[0] == claim.raw
    record = record_of(harness, "a")
    assert (record.state, record.attempt_count) == (State.PENDING, 0)
    assert (counter(harness, "released"), counter(harness, "recovered"), counter(harness, "failed")) == (1, 0, 0)
    assert drift(harness) == 0


def test_deregistering_twice_has_no_second_effect(harness: Harness) -> None:
    running(harness, "a")
    harness.broker.deregister(["w1"])
    before = snapshot(harness, "a")
    harness.broker.deregister(["w1"])
    assert snapshot(harness, "a") == before


def test_a_slot_named_twice_gives_its_job_back_once(harness: Harness) -> None:
    running(harness, "a")
    harness.broker.deregister(["w1", "w1"])
    assert ids_in(harness, "low") == ["a"]
    assert (counter(harness, "released"), drift(harness)) == (1, 0)


def test_deregistering_an_unknown_slot_changes_nothing(harness: Harness) -> None:
    running(harness, "a", "w1")
    before = snapshot(harness, "a")
    harness.broker.deregister(["w9"])
    assert snapshot(harness, "a") == before


def test_bytes_that_are_not_a_job_go_back_too(harness: Harness) -> None:
    harness.push_raw("low", b"hello")
    claim_one(harness)
    harness.broker.deregister(["w1"])
    assert raws_in(harness, "low") == [b"hello"]
    assert claim_one(harness, "w2").raw == b"hello"
    assert drift(harness) == 0


def test_copies_go_back_each_with_its_own_bytes(harness: Harness) -> None:
    """Two jobs of one id: the record has the bytes of the last claimed, and each must go back unchanged."""
    raws = [foreign("a", x_copy=1), foreign("a", x_copy=2)]
    for raw in raws:
        harness.push_raw("low", raw)
    claims_of(harness, "w1", "w2")
    harness.broker.deregister(["w2", "w1"])
    assert raws_in(harness, "low") == raws
    assert drift(harness) == 0


def test_a_slot_may_register_again_after_it_left(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.deregister(["w1"])
    assert settle(harness, complete(claim)) is SettleResult.FENCED
    again = claim_one(harness)
    assert settle(harness, complete(again)) is SettleResult.DONE
    assert places_of(harness, "a") == ["completed"]
    assert drift(harness) == 0


def test_a_thousand_slots_come_and_go(harness: Harness) -> None:
    slots = names(1000, "slot")
    enqueue(harness, *names(500))
    assert len(claims_of(harness, *slots)) == 500
    assert [view.slot for view in harness.broker.workers()] == slots
    assert harness.broker.census().heartbeats == 1000
    harness.broker.deregister(slots)
    assert harness.broker.workers() == []
    assert sorted(ids_in(harness, "low")) == names(500)
    assert drift(harness) == 0


def test_a_worker_reports_its_open_breakers_and_missing_roots(harness: Harness) -> None:
    info = worker_info(breaker="open", breakers=(OpenBreaker("**/*.pdf", "open", "ValueError", 0.5, 17),))
    held = worker_info(is_claiming=False, lost_roots=("/d is missing",))
    harness.broker.register({"w1": info, "w2": held})
    assert [view.info for view in harness.broker.workers()] == [info, held]


def test_resets_of_breakers_are_counted_for_each_route(harness: Harness) -> None:
    assert harness.broker.breaker_resets() == {}
    for route in ("**/*.pdf", "mail", "mail", ""):
        harness.broker.reset_breaker(route)
    assert harness.another().breaker_resets() == {"**/*.pdf": 1, "mail": 2, "": 1}
