"""How many round trips each call takes, counted by a proxy."""

from collections.abc import Iterator

import pytest

from fileq.core.settlement import SettleResult
from fileq.testing.conformance.builders import enqueue, names
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_calls import CALLS, SETTLEMENTS
from tests.support.redis_store import Store, claimed, opened


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


@pytest.fixture
def proxy(redis_server) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("count", [1, 16, 200])
@pytest.mark.parametrize("makers", [SETTLEMENTS[:1], SETTLEMENTS], ids=["completions", "all verbs"])
def test_settle_and_claim_is_one_round_trip_for_any_number_of_jobs(store, proxy, count, makers):
    slots = names(count, "w")
    claims = claimed(store, *slots, ids=tuple(names(count)))
    enqueue(store, *names(count, "next"))
    settlements = [makers[i % len(makers)](claim) for i, claim in enumerate(claims)]
    through = store.through(proxy.port)
    scripts_run = store.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.reset_counts()

    reply = through.settle_and_claim(settlements, slots)

    assert set(reply.settled) == {SettleResult.DONE}
    assert len(reply.claims) == count
    assert proxy.round_trips == 1
    assert [request.split(b"\r\n")[2] for request in proxy.requests] == [b"EVALSHA"]
    assert store.client.info("commandstats")["cmdstat_evalsha"]["calls"] - scripts_run == 1


def test_the_server_gets_only_the_scripts_that_are_used_and_only_once(store, proxy):
    store.client.script_flush()
    through = store.through(proxy.port)
    assert proxy.round_trips == 1, "opening sends no script"
    for expected in (["EVALSHA", "SCRIPT", "EVALSHA"], ["EVALSHA"]):
        proxy.reset_counts()
        through.census()
        assert [request.split(b"\r\n")[2].decode() for request in proxy.requests] == expected
    other = store.through(proxy.port)
    proxy.reset_counts()
    other.census()
    assert proxy.round_trips == 1


def test_every_call_is_one_round_trip(store, proxy):
    through = store.through(proxy.port)
    flights = {}
    for subject in CALLS:
        call = subject.prepare(store)
        proxy.reset_counts()
        call(through)
        flights[subject.name] = proxy.round_trips
        store.empty()
    read_first = "cancel by id", "cancel by id and follow", "cancel a member by id", "restore"
    for name in (*read_first, "bury_overdue", "bury an overdue member"):
        assert flights.pop(name) == 2, "it reads the records first, because they name the lists"
    for name in ("define_schedule", "pause_schedule", "resume_schedule", "remove_schedule"):
        assert flights.pop(name) == 2, "it reads the state first"
    assert flights.pop("sweep_unique") == 2, "it reads the keys first"
    assert flights.pop("balance") == 3, "it searches for unregistered slots: the registry, then all keys"
    assert {name: count for name, count in flights.items() if count != 1} == {}


@pytest.mark.parametrize("waiting", [0, 2000])
def test_an_overview_is_one_round_trip_for_any_number_of_jobs(store, proxy, waiting):
    claimed(store, *names(20, "w"), ids=tuple(names(20)))
    enqueue(store, *names(waiting, "more"))
    through = store.through(proxy.port)
    proxy.reset_counts()
    overview = through.overview(2, jobs=10)
    assert proxy.round_trips == 1
    assert (len(overview.workers), overview.census.pending["low"]) == (20, waiting)
