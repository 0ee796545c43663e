"""A call that the server executes long after its sender gave up: it takes nothing from a slot or a job that has moved
on. Through the fault proxy, on real servers."""

import threading
from collections.abc import Iterator

import pytest

from fileq.brokers.redis.scripts import PARTS, SETTLE_AND_CLAIM, script
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import claims_of, enqueue, places_of, raws_in, reap_all, register, snapshot
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_calls import SETTLEMENTS
from tests.support.redis_store import NO_RETRIES, Store, claimed, dump, opened


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


@pytest.fixture
def proxy(redis_server) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


def sent_as(name: str):
    names = tuple(PARTS) if name == SETTLE_AND_CLAIM else (name,)
    shas = [script(name).sha.encode() for name in names]
    return lambda request: b"EVALSHA" in request and any(sha in request for sha in shas)


def given_up(store: Store, proxy: FaultProxy, script: str, call):
    """The held request of `call`; its sender's connection is cut, and the sender has given up."""
    through = store.through(proxy.port, **NO_RETRIES)
    hold = proxy.hold_when(sent_as(script))
    cutter = threading.Thread(target=hold.cut_client)
    cutter.start()
    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        call(through)
    cutter.join()
    return hold


def test_a_claim_executed_after_its_slot_was_deregistered_takes_nothing(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    store.broker.deregister(["w1"])
    before = dump(store.client)

    late.release()

    assert dump(store.client) == before
    assert raws_in(store, "low")[0] == store.client.lindex("jobqueue:low_priority", -1)
    assert places_of(store, "a") == ["low"]


def test_a_claim_executed_after_its_slot_was_reaped_takes_nothing(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    store.client.delete("jobqueue:processing:worker:w1")
    reap_all(store)
    before = dump(store.client)

    late.release()

    assert dump(store.client) == before


def test_a_claim_executed_while_its_slot_is_alive_is_returned_by_the_next_claim(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    late.release()
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1"]).claims] == ["a"]
    assert places_of(store, "b") == ["low"]


@pytest.mark.parametrize("make", SETTLEMENTS)
def test_a_settle_executed_after_its_job_went_to_another_slot_changes_nothing(store, proxy, make):
    [claim] = claimed(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([make(claim)], []))
    store.client.delete("jobqueue:processing:worker:w1")
    reap_all(store)
    [now] = claims_of(store, "w2")
    before = snapshot(store, "a")

    late.release()

    assert snapshot(store, "a") == before
    assert places_of(store, "a") == ["processing:w2"]
    assert store.broker.settle_and_claim([complete(now)], []).settled == (SettleResult.DONE,)


@pytest.mark.parametrize("make", SETTLEMENTS)
def test_a_settle_executed_after_its_own_repetition_changes_nothing(store, proxy, make):
    [claim] = claimed(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([make(claim)], []))
    assert store.broker.settle_and_claim([make(claim)], []).settled == (SettleResult.DONE,)
    before = dump(store.client)

    late.release()

    assert dump(store.client) == before


def test_a_settle_executed_after_its_slot_got_the_same_bytes_again_changes_nothing(store, proxy):
    """The job was released, another one completed, and the job claimed again: the old release must not take it from the
    running handler."""
    [claim] = claimed(store, "w1")
    late = given_up(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([release(claim)], []))
    store.broker.settle_and_claim([release(claim)], [])
    enqueue(store, "urgent", queue="high")
    [other] = store.broker.settle_and_claim([], ["w1"]).claims
    [same] = store.broker.settle_and_claim([complete(other)], ["w1"]).claims
    assert same.raw == claim.raw
    before = snapshot(store, "a")

    late.release()

    assert snapshot(store, "a") == before
    assert places_of(store, "a") == ["processing:w1"]
    assert store.broker.settle_and_claim([complete(same)], []).settled == (SettleResult.DONE,)


def test_a_renewal_executed_after_its_slot_was_deregistered_leaves_no_heartbeat(store, proxy):
    [claim] = claimed(store, "w1")
    late = given_up(store, proxy, "renew", lambda broker: broker.renew([("w1", claim.raw)]))
    store.broker.deregister(["w1"])
    before = dump(store.client)

    late.release()

    assert dump(store.client) == before
