"""A lost reply, a reset, half a reply, a request that arrives long after its sender has gone: no verb does anything
twice, and none does half of anything. Through the fault proxy, on real servers."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.brokers.redis.scripts import all_scripts
from fileq.brokers.types import EnqueueResult
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Version
from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import (
    an_entry,
    claims_of,
    enqueue,
    ids_in,
    names,
    places_of,
    raws_in,
    reap_all,
    register,
    snapshot,
)
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_store import (
    EVERY_WAY,
    NO_RETRIES,
    QUICK,
    VERBS,
    Store,
    Verb,
    claimed,
    contents,
    dump,
    opened,
)


def each(*verbs: Verb) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("verb", verbs, ids=[verb.name.replace(" ", "_") for verb in verbs])


every_verb = each(*VERBS)
# Where only the connection matters: a call that adds, one that moves, one that does both.
some_verbs = each(*(verb for verb in VERBS if verb.name in ("enqueue", "claim", "settle_and_claim")))


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


@pytest.fixture
def proxy(redis_server) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


_calm: dict[tuple[str, str], tuple[Any, Any]] = {}


def called_once(store: Store, verb: Verb) -> tuple[Any, Any]:
    """What the call answers and leaves when all goes well; the same for every test, since time stands still."""
    which = store.server.binary, verb.name
    if which not in _calm:
        with opened(store.server) as calm:
            answer = verb.prepare(calm)(calm.another())
            _calm[which] = answer, contents(calm.client)
            calm.empty()
    return _calm[which]


def sent_as(script: str):
    sha = all_scripts()[script].sha.encode()
    return lambda request: b"EVALSHA" in request and sha in request


def request_of(verb: Verb):
    """The request that changes something, one a call; `cancel by id` looks at records before."""
    return lambda request: any(word in request for word in (b"EVALSHA", b"SADD", b"SREM"))


# the same call twice


@every_verb
def test_a_call_repeated_by_the_broker_after_several_lost_replies_has_one_effect(store, proxy, verb):
    answer, state = called_once(store, verb)
    call = verb.prepare(store)
    through = store.through(proxy.port)
    lost = proxy.drop_reply_when(request_of(verb), times=3)

    again = call(through)

    assert lost.fired == 3
    assert contents(store.client) == state
    assert again == verb.again(answer)


@every_verb
def test_a_call_repeated_by_the_caller_after_a_lost_reply_has_one_effect(store, proxy, verb):
    _, state = called_once(store, verb)
    call = verb.prepare(store)
    through = store.through(proxy.port, **NO_RETRIES)
    lost = proxy.drop_reply_when(request_of(verb))

    with pytest.raises(BrokerUnavailable, match="is away"):
        call(through)
    assert contents(store.client) == state, "obeyed, though nobody heard so"
    call(through)

    assert lost.fired == 1
    assert contents(store.client) == state


@some_verbs
def test_a_call_repeated_by_the_caller_after_a_time_out_has_one_effect(store, proxy, verb):
    """The broker does not repeat it by itself: who calls has waited long enough."""
    _, state = called_once(store, verb)
    call = verb.prepare(store)
    through = store.through(proxy.port, **QUICK)
    late = proxy.delay_replies(60, request_of(verb), times=1)
    proxy.reset_counts()

    with pytest.raises(BrokerUnavailable, match="Timeout"):
        call(through)
    assert sum(map(request_of(verb), proxy.requests)) == 1
    call(store.another())

    assert late.fired == 1
    assert contents(store.client) == state


@some_verbs
def test_a_reset_before_the_server_knows_of_the_call_is_not_noticed(store, proxy, verb):
    answer, state = called_once(store, verb)
    call = verb.prepare(store)
    through = store.through(proxy.port)
    reset = proxy.reset_when(request_of(verb), times=2)

    assert call(through) == answer

    assert reset.fired == 2
    assert contents(store.client) == state


@some_verbs
def test_half_a_reply_is_none(store, proxy, verb):
    _, state = called_once(store, verb)
    call = verb.prepare(store)
    through = store.through(proxy.port, **NO_RETRIES)
    cut = proxy.cut_reply_when(request_of(verb), after=2)

    with pytest.raises(BrokerUnavailable, match="is away"):
        call(through)
    call(through)

    assert cut.fired == 1
    assert contents(store.client) == state


def test_connections_reset_while_idle_are_not_noticed(store, proxy):
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
    with pytest.raises(BrokerUnavailable, match="is away"):
        through.enqueue([an_entry("a")])
    assert reset.fired == 3, "once and two repetitions"
    assert store.client.keys() == []


# what the repetition answers


def test_an_enqueue_that_the_broker_repeated_says_enqueued(store, proxy):
    through = store.through(proxy.port)
    proxy.drop_reply_when(b"EVALSHA")
    entries = [an_entry("a"), an_entry("b", version=Version(b"/data/b", "s1")), an_entry("c", delay_ms=1000)]
    assert through.enqueue(entries, limit=5).fates == (EnqueueResult.ENQUEUED,) * 3
    assert through.enqueue(entries, limit=5).fates == (EnqueueResult.DUPLICATE,) * 3


def test_an_enqueue_that_a_restarted_server_executed_before_says_enqueued(store, proxy):
    """The reply was lost with the server, and with it the scripts: the repetition is told NOSCRIPT first."""
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
    assert answers[0].fates == (EnqueueResult.ENQUEUED,)
    assert places_of(store, "a") == ["low"]


@pytest.mark.parametrize("make", EVERY_WAY)
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
    link = store.broker.link
    for posted in [link.post([("EXISTS", "anything")]) for _ in range(4)]:
        posted.take()
    store.client.client_kill_filter(_type="normal", skipme=True)
    assert link.call("EXISTS", "anything") == 0


# zombies: executed after their sender gave up


def held_back(store: Store, proxy: FaultProxy, script: str, call):
    """The request of `call`, on its way for good; its sender is cut off and has given up."""
    through = store.through(proxy.port, **NO_RETRIES)
    hold = proxy.hold_when(sent_as(script))
    cutter = threading.Thread(target=hold.cut_client)
    cutter.start()
    with pytest.raises(BrokerUnavailable, match="is away"):
        call(through)
    cutter.join()
    return hold


def test_a_claim_executed_after_its_slot_was_deregistered_takes_nothing(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    store.broker.deregister(["w1"])
    before = dump(store.client)

    zombie.release()

    assert dump(store.client) == before
    assert raws_in(store, "low")[0] == store.client.lindex("jobqueue:low_priority", -1)
    assert places_of(store, "a") == ["low"]


def test_a_claim_executed_after_its_slot_was_reaped_takes_nothing(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    store.client.delete("jobqueue:processing:worker:w1")
    reap_all(store)
    before = dump(store.client)

    zombie.release()

    assert dump(store.client) == before


def test_a_claim_executed_while_its_slot_lives_is_found_at_the_next_one(store, proxy):
    enqueue(store, "a", "b")
    register(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([], ["w1"]))
    zombie.release()
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1"]).claims] == ["a"]
    assert places_of(store, "b") == ["low"]


@pytest.mark.parametrize("make", EVERY_WAY)
def test_a_settle_executed_after_its_job_went_to_another_slot_changes_nothing(store, proxy, make):
    [claim] = claimed(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([make(claim)], []))
    store.client.delete("jobqueue:processing:worker:w1")
    reap_all(store)
    [now] = claims_of(store, "w2")
    before = snapshot(store, "a")

    zombie.release()

    assert snapshot(store, "a") == before
    assert places_of(store, "a") == ["processing:w2"]
    assert store.broker.settle_and_claim([complete(now)], []).settled == (SettleResult.DONE,)


@pytest.mark.parametrize("make", EVERY_WAY)
def test_a_settle_executed_after_its_own_repetition_changes_nothing(store, proxy, make):
    [claim] = claimed(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([make(claim)], []))
    assert store.broker.settle_and_claim([make(claim)], []).settled == (SettleResult.DONE,)
    before = dump(store.client)

    zombie.release()

    assert dump(store.client) == before


def test_a_settle_executed_after_its_slot_got_the_same_bytes_again_changes_nothing(store, proxy):
    """Released, another job done in between, claimed again: the old release must not take it from a running handler."""
    [claim] = claimed(store, "w1")
    zombie = held_back(store, proxy, "settle_and_claim", lambda broker: broker.settle_and_claim([release(claim)], []))
    store.broker.settle_and_claim([release(claim)], [])
    enqueue(store, "urgent", queue="high")
    [other] = store.broker.settle_and_claim([], ["w1"]).claims
    [same] = store.broker.settle_and_claim([complete(other)], ["w1"]).claims
    assert same.raw == claim.raw
    before = snapshot(store, "a")

    zombie.release()

    assert snapshot(store, "a") == before
    assert places_of(store, "a") == ["processing:w1"]
    assert store.broker.settle_and_claim([complete(same)], []).settled == (SettleResult.DONE,)


def test_a_renewal_executed_after_its_slot_is_gone_leaves_no_heartbeat(store, proxy):
    [claim] = claimed(store, "w1")
    zombie = held_back(store, proxy, "renew", lambda broker: broker.renew([("w1", claim.raw)]))
    store.broker.deregister(["w1"])
    before = dump(store.client)

    zombie.release()

    assert dump(store.client) == before


# one round trip


@pytest.mark.parametrize("count", [1, 16, 200])
@pytest.mark.parametrize("ways", [EVERY_WAY[:1], EVERY_WAY], ids=["completions", "every way"])
def test_a_turn_is_one_round_trip_however_many_jobs_it_settles_and_claims(store, proxy, count, ways):
    slots = names(count, "w")
    claims = claimed(store, *slots, ids=tuple(names(count)))
    enqueue(store, *names(count, "next"))
    settlements = [ways[i % len(ways)](claim) for i, claim in enumerate(claims)]
    through = store.through(proxy.port)
    scripts_run = store.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.reset_counts()

    turn = through.settle_and_claim(settlements, slots)

    assert set(turn.settled) == {SettleResult.DONE}
    assert len(turn.claims) == count
    assert proxy.round_trips == 1
    assert [request.split(b"\r\n")[2] for request in proxy.requests] == [b"EVALSHA"]
    assert store.client.info("commandstats")["cmdstat_evalsha"]["calls"] - scripts_run == 1


def test_every_call_is_one_round_trip(store, proxy):
    through = store.through(proxy.port)
    flights = {}
    for verb in VERBS:
        call = verb.prepare(store)
        proxy.reset_counts()
        call(through)
        flights[verb.name] = proxy.round_trips
        store.empty()
    assert flights.pop("cancel by id") == 2, "it looks at the records first, for the event's sake"
    assert flights.pop("balance") == 3, "it looks for lists that no slot owns: the registry, then all keys"
    assert set(flights.values()) == {1}, flights


@pytest.mark.parametrize("waiting", [0, 2000])
def test_an_overview_is_two_round_trips_however_much_there_is_to_see(store, proxy, waiting):
    claimed(store, *names(20, "w"), ids=tuple(names(20)))
    enqueue(store, *names(waiting, "more"))
    through = store.through(proxy.port)
    proxy.reset_counts()
    overview = through.overview(2)
    assert proxy.round_trips == 2
    assert (len(overview.workers), overview.census.pending["low"]) == (20, waiting)
