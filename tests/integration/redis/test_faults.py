"""A lost reply, a reset connection, half a reply: no call takes effect twice or by half. Through the fault proxy, on
real servers."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.brokers.types import EnqueueResult
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Version
from fileq.core.settlement import SettleResult
from fileq.testing.conformance.builders import an_entry, enqueue, ids_in, names, places_of, register
from tests.support.broker_calls import BrokerCall
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_calls import CALLS, SETTLEMENTS
from tests.support.redis_store import NO_RETRIES, QUICK, Store, claimed, contents, opened
from tests.support.waiting import wait_until


def each(*calls: BrokerCall) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", calls, ids=[call.name.replace(" ", "_") for call in calls])


every_call = each(*CALLS)
# For tests about the connection alone: a call that adds jobs, one that moves them, one that does both.
some_calls = each(*(call for call in CALLS if call.name in ("enqueue", "claim", "settle_and_claim")))


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


@pytest.fixture
def proxy(redis_server) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


_undisturbed: dict[tuple[str, str], tuple[Any, Any]] = {}


def undisturbed(store: Store, subject: BrokerCall) -> tuple[Any, Any]:
    """The reply and the contents of the server after the call without a fault; the same in every test, because time
    stands still."""
    which = store.server.binary, subject.name
    if which not in _undisturbed:
        with opened(store.server) as quiet:
            answer = subject.prepare(quiet)(quiet.another())
            _undisturbed[which] = answer, contents(quiet.client)
            quiet.empty()
    return _undisturbed[which]


def request_of(subject: BrokerCall):
    """Matches the request of a call that changes something; `cancel by id` reads records before it."""
    return lambda request: any(word in request for word in (b"EVALSHA", b"SADD", b"SREM"))


@every_call
def test_a_call_repeated_by_the_broker_after_several_lost_replies_has_one_effect(store, proxy, subject):
    answer, state = undisturbed(store, subject)
    call = subject.prepare(store)
    through = store.through(proxy.port)
    lost = proxy.drop_reply_when(request_of(subject), times=3)

    again = call(through)

    assert lost.fired == 3
    assert contents(store.client) == state
    assert again == subject.again(answer)


@every_call
def test_a_call_repeated_by_the_caller_after_a_lost_reply_has_one_effect(store, proxy, subject):
    _, state = undisturbed(store, subject)
    call = subject.prepare(store)
    through = store.through(proxy.port, **NO_RETRIES)
    lost = proxy.drop_reply_when(request_of(subject))

    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        call(through)
    assert contents(store.client) == state, "executed, although its reply was lost"
    call(through)

    assert lost.fired == 1
    assert contents(store.client) == state


@some_calls
def test_a_call_repeated_by_the_caller_after_a_time_out_has_one_effect(store, proxy, subject):
    """The broker does not repeat it: the caller has waited long enough."""
    _, state = undisturbed(store, subject)
    call = subject.prepare(store)
    through = store.through(proxy.port, **QUICK)
    late = proxy.delay_replies(60, request_of(subject), times=1)
    proxy.reset_counts()

    with pytest.raises(BrokerUnavailable, match="no answer within"):
        call(through)
    assert sum(map(request_of(subject), proxy.requests)) == 1
    call(store.another())

    assert late.fired == 1
    assert contents(store.client) == state


@some_calls
def test_a_connection_reset_before_the_server_receives_the_call_is_hidden_from_the_caller(store, proxy, subject):
    answer, state = undisturbed(store, subject)
    call = subject.prepare(store)
    through = store.through(proxy.port)
    reset = proxy.reset_when(request_of(subject), times=2)

    assert call(through) == answer

    assert reset.fired == 2
    assert contents(store.client) == state


@some_calls
def test_half_a_reply_counts_as_no_reply(store, proxy, subject):
    _, state = undisturbed(store, subject)
    call = subject.prepare(store)
    through = store.through(proxy.port, **NO_RETRIES)
    cut = proxy.cut_reply_when(request_of(subject), after=2)

    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        call(through)
    call(through)

    assert cut.fired == 1
    assert contents(store.client) == state


def test_connections_reset_while_idle_are_hidden_from_the_caller(store, proxy):
    through = store.through(proxy.port, **{"redis.min_idle_conns": 4})
    register(store, "w1")
    for id in names(3):
        proxy.reset_all()
        through.enqueue([an_entry(id)])
        assert through.settle_and_claim([], ["w1"]).claims
    assert store.broker.census().drift == 0


def test_retries_end_in_unavailable(store, proxy):
    through = store.through(proxy.port, **{"redis.max_retries": 2})
    reset = proxy.reset_when(b"EVALSHA", times=None)
    with pytest.raises(BrokerUnavailable, match="is unavailable"):
        through.enqueue([an_entry("a")])
    assert reset.fired == 3, "the call and two repeats"
    assert store.client.keys() == []


# the reply to a repeated call


def test_an_enqueue_that_the_broker_repeated_returns_enqueued(store, proxy):
    through = store.through(proxy.port)
    proxy.drop_reply_when(b"EVALSHA")
    entries = [an_entry("a"), an_entry("b", version=Version(b"/data/b", "s1")), an_entry("c", delay_ms=1000)]
    assert through.enqueue(entries, limit=5).results == (EnqueueResult.ENQUEUED,) * 3
    assert through.enqueue(entries, limit=5).results == (EnqueueResult.DUPLICATE,) * 3


def test_an_enqueue_that_a_restarted_server_executed_before_returns_enqueued(store, proxy):
    """The server lost the reply and the scripts: the first repeat gets NOSCRIPT."""
    through = store.through(proxy.port)
    lost = proxy.drop_reply_when(b"EVALSHA")
    flushed = proxy.hold_when(b"EVALSHA", nth=2)
    answers = []
    caller = threading.Thread(target=lambda: answers.append(through.enqueue([an_entry("a")])))
    caller.start()
    flushed.wait_caught()
    store.client.script_flush()
    flushed.release()
    caller.join(10)
    assert lost.fired == 1
    assert answers[0].results == (EnqueueResult.ENQUEUED,)
    assert places_of(store, "a") == ["low"]


@pytest.mark.parametrize("make", SETTLEMENTS)
def test_a_settle_repeated_after_a_lost_reply_is_done_already(store, proxy, make):
    [claim] = claimed(store, "w1")
    through = store.through(proxy.port, **NO_RETRIES)
    proxy.drop_reply_when(b"EVALSHA")
    with pytest.raises(BrokerUnavailable):
        through.settle_and_claim([make(claim)], [])
    assert through.settle_and_claim([make(claim)], []).settled == (SettleResult.DONE_ALREADY,)


def test_a_claim_repeated_after_a_lost_reply_gives_the_same_jobs(store, proxy):
    enqueue(store, *names(5))
    slots = ["w1", "w2", "w3"]
    register(store, *slots)
    through = store.through(proxy.port, **NO_RETRIES)
    proxy.drop_reply_when(b"EVALSHA")
    with pytest.raises(BrokerUnavailable):
        through.settle_and_claim([], slots)
    assert [c.id for c in through.settle_and_claim([], slots).claims] == names(3)
    assert store.broker.census().pending["low"] == 2


def test_a_slot_named_twice_in_one_call_counts_once(store):
    enqueue(store, "a", "b")
    register(store, "w1")
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1", "w1"]).claims] == ["a", "a"]
    assert places_of(store, "b") == ["low"]
    store.broker.deregister(["w1", "w1"])
    assert ids_in(store, "low") == ["a", "b"]
    assert store.broker.census().drift == 0


def test_connections_that_are_cut_all_at_once_are_no_outage(store):
    for pending in [store.broker.send_settle_and_claim([], ["w1"]) for _ in range(4)]:
        pending.take()
    store.client.client_kill_filter(_type="normal", skipme=True)
    assert store.broker.census().running == 0


# calls in flight


def test_the_next_call_does_not_get_the_reply_of_a_dropped_one(store):
    enqueue(store, "a")
    register(store, "w1")
    for _ in range(5):
        store.broker.send_settle_and_claim([], ["w1"]).drop()
        assert store.broker.census().heartbeats == 1
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1"]).claims] == ["a"]
    assert store.broker.census().drift == 0


def test_a_dropped_call_leaves_no_open_connection_behind(store, proxy):
    through = store.through(proxy.port)
    before = proxy.open_connections
    answers = [through.send_settle_and_claim([], ["w1"]) for _ in range(3)]
    for pending in answers:
        pending.drop()
        pending.drop()
    wait_until(lambda: proxy.open_connections <= before)


def test_the_result_of_a_call_is_taken_once(store):
    register(store, "w1")
    pending = store.broker.send_settle_and_claim([], ["w1"])
    pending.take()
    with pytest.raises(RuntimeError, match="already taken or dropped"):
        pending.take()


@pytest.mark.parametrize("how", ["dropped", "failed"])
def test_a_call_without_a_result_does_not_count_as_a_claim(redis_server, proxy, how):
    """Every second claim starts at the lower queue; a call that claimed nothing must not shift that."""
    with opened(redis_server, **{"worker.starvation_share": 0.5}) as store:
        through = store.through(proxy.port, **NO_RETRIES)
        enqueue(store, "high1", "high2", queue="high")
        enqueue(store, "low1", "low2")
        register(store, "w1", "w2")
        if how == "failed":
            proxy.reset_when(b"EVALSHA")
        pending = through.send_settle_and_claim([], ["unregistered"])
        if how == "failed":
            with pytest.raises(BrokerUnavailable):
                pending.take()
        else:
            pending.drop()
        claims = [through.settle_and_claim([], [slot]).claims[0].id for slot in ("w1", "w2")]
    assert claims == ["high1", "low1"]
