"""Batches on Redis: what lost keys, another program or a full server do to them."""

from collections.abc import Iterator

import pytest

from fileq.actions import bulk
from fileq.brokers.batches import CHILDREN_CANCELLED
from fileq.brokers.types import Entry
from fileq.client.broker_transport import BrokerTransport
from fileq.core.settlement import complete
from fileq.testing.conformance.batch_builders import EVERY_KIND, add, batch_of, callback_jobs, counts, create, end
from fileq.testing.conformance.builders import a_job, burial, claim_one, enqueue, names, register, settle
from fileq.worker.batch_reconciler import BatchReconciler
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_batch_calls import claims_of, family
from tests.support.redis_store import Store, opened, spoil

KEYS = ("", ":members", ":dead", ":children")


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


def test_members_whose_batch_lost_its_last_changes_are_counted_later(store):
    first, second = claims_of(store, "m1", "m2")
    before = {key: store.client.dump(key) for key in store.client.keys("jobqueue:batch:b*")}
    assert set(store.broker.settle_and_claim([complete(first), burial(second)], []).settled) == {"done"}
    store.client.delete(*store.client.keys("jobqueue:batch:b*"))
    for key, value in before.items():
        store.client.restore(key, 0, value)
    assert counts(store) == {"total": 2, "waiting": 2}
    assert store.broker.count_members("b", store.broker.unfinished_members("b").ids) == 2
    assert counts(store) == {"total": 2, "completed": 1, "dead": 1}
    assert [batch_of(store, id).state for id in ("b", "p")] == ["finished", "sealed"]
    assert callback_jobs(store) == {"b.catch", "b.finally"}
    assert store.broker.dead_members("b").ids == ("m2",)


def test_a_job_that_joins_while_it_runs_is_counted_by_its_settlement(store, redis_server):
    """Its bytes do not name the batch. The usual script refuses it, and the one that counts gets the whole turn."""
    enqueue(store, "a", "next", "last")
    first, second = claim_one(store, "w1"), claim_one(store, "w2")
    create(store)
    assert store.broker.join_batch("b", ["a"]) == ["joined"]
    store.broker.seal_batch("b")
    with FaultProxy(redis_server.port) as proxy:
        through = store.through(proxy.port)
        proxy.reset_counts()
        reply = through.settle_and_claim([burial(second), complete(first)], ["w2", "w1"])
        assert proxy.round_trips == 2
    assert (set(reply.settled), reply.finished_batches) == ({"done"}, ("b",))
    assert [claim.id for claim in reply.claims] == ["last"]
    assert counts(store) == {"total": 1, "completed": 1}
    assert store.broker.census().drift == 0


@pytest.mark.parametrize("part", KEYS)
def test_a_batch_of_the_wrong_type_costs_no_other_job_anything(store, part):
    create(store, *EVERY_KIND, id="other")
    add(store, "o1", "o2", batch="other")
    store.broker.seal_batch("other")
    family(store, "m1", "m2")
    spoil(store.client, f"jobqueue:batch:b{part}".encode())
    register(store, "w1", "w2", "w3", "w4")
    claims = store.broker.settle_and_claim([], ["w1", "w2", "w3", "w4"]).claims
    assert len(store.broker.renew([(claim.slot, claim.raw) for claim in claims])) == 4
    by_id = {claim.id: claim for claim in claims}
    settlements = [complete(by_id["o1"]), complete(by_id["m1"]), burial(by_id["m2"]), complete(by_id["o2"])]
    assert set(store.broker.settle_and_claim(settlements, []).settled) == {"done"}
    assert counts(store, "other") == {"total": 2, "completed": 2}
    assert batch_of(store, "other").fired == ("then", "finally")


def test_a_full_server_counts_and_finishes(store):
    family(store, "m1", "m2")
    store.client.config_set("maxmemory", 1)
    try:
        end(store, complete, "m1")
        end(store, burial, "m2")
    finally:
        store.client.config_set("maxmemory", 0)
    assert counts(store) == {"total": 2, "completed": 1, "dead": 1}
    assert callback_jobs(store) == {"b.catch", "b.finally"}


def test_members_that_no_key_names_any_more_count_as_deleted(store):
    family(store, "m1", "m2")
    store.client.delete("jobqueue:batch:b:members")
    assert store.broker.count_members("b", []) == 0
    assert counts(store) == {"total": 2, "deleted": 2}


def test_a_child_that_finished_uncounted_is_counted_with_the_members_of_its_parent(store):
    family(store, "m1")
    settle(store, complete(claim_one(store)))
    store.client.sadd("jobqueue:batch:p:children", "b", "gone")
    store.client.hincrby("jobqueue:batch:p", "completed", -1)
    store.client.hincrby("jobqueue:batch:p", "total", 1)
    store.broker.count_members("p", [])
    assert counts(store, "p") == {"total": 4, "waiting": 2, "completed": 1, "deleted": 1}


def test_the_keys_of_an_expired_batch_are_removed_by_new_batches(store):
    create(store, id="old")
    store.broker.seal_batch("old")
    assert 0 < store.client.pttl("jobqueue:batch:old") <= 30 * 24 * 3600 * 1000
    store.client.delete("jobqueue:batch:old")
    for number in range(5):
        create(store, id=f"new{number}")
        store.advance(0.001)
    assert b"old" not in store.client.zrange("jobqueue:batches", 0, -1)


def calls_of(store: Store) -> dict[str, int]:
    found = store.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): facts["calls"] for name, facts in found.items()}


def test_of_very_many_child_batches_one_call_looks_at_a_bounded_number(store):
    """A batch of a million child batches must not block the server while it is cancelled."""
    create(store)
    create(store, id="child", parent="b")
    for start in range(0, 5_000, 1_000):
        store.client.sadd("jobqueue:batch:b:children", *(f"c{n}" for n in range(start, start + 1_000)))
    store.client.config_resetstat()
    assert store.broker.cancel_batch("b")
    calls = calls_of(store)
    assert "smembers" not in calls
    assert calls["hmget"] <= CHILDREN_CANCELLED + 10
    assert batch_of_state(store) == ("sealed", True)


def batch_of_state(store: Store) -> tuple[str, bool]:
    [batch] = store.broker.batches_by_id(["b"])
    assert batch is not None
    return batch.state.value, batch.is_cancelled


def test_members_of_a_cancelled_batch_in_a_long_queue_wait_for_their_claim(store, monkeypatch):
    """To remove one from the middle of a queue of a million jobs takes the server 40 ms; a claim ends it for less."""
    monkeypatch.setattr(bulk, "LONG_QUEUE", 50)
    create(store)
    add(store, *names(60))
    store.broker.enqueue([Entry(a_job("later", batch_id="b"), "low", joins=True, delay_ms=60_000)])
    store.client.config_resetstat()
    assert BrokerTransport(store.broker, store.config, clock=store.clock).cancel_batch("b")
    assert "lrem" not in calls_of(store)
    assert counts(store) == {"total": 61, "waiting": 60, "cancelled": 1}
    assert claim_one(store).is_cancelled
    monkeypatch.setattr(bulk, "LONG_QUEUE", 59)
    BatchReconciler(store.config, store.broker).turn()
    assert counts(store) == {"total": 61, "running": 1, "cancelled": 60}
