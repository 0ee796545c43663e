"""Events on Redis: built and published only if a subscriber may receive them; to a subscriber nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from fileq.brokers import wire_events
from fileq.brokers.types import Entry
from fileq.core.job import MAX_PARSED_BYTES, encode, typed_job
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import a_job, claim_one, claims_of, enqueue, foreign, names, register, settle
from fileq.testing.conformance.harness import START_MS, FakeClock
from tests.integration.redis.test_permissions import LOGIN, PERMISSIONS
from tests.support.redis_store import Store
from tests.support.servers import Server
from tests.support.waiting import wait_until

CHANNEL = "jobqueue:events"
SLOTS = ("w1", "w2", "w3")
CREATED = datetime(2026, 11, 16, tzinfo=UTC)


@contextmanager
def prepared(server: Server, **settings: Any) -> Iterator[Store]:
    """With registered slots, and nothing published so far."""
    with Store(server, clock=FakeClock(), **settings) as store:
        register(store, *SLOTS)
        store.client.config_resetstat()
        yield store


@pytest.fixture
def store(redis_server: Server) -> Iterator[Store]:
    with prepared(redis_server) as store:
        yield store


@pytest.fixture
def primary(redis_server: Server) -> Iterator[Server]:
    """A server of its own: one that had a replica is not as new again."""
    with Server(redis_server.binary) as server:
        yield server


@contextmanager
def listening(server: Server, pattern: str = "") -> Iterator[Any]:
    with server.client().pubsub() as listener:
        listener.psubscribe(pattern) if pattern else listener.subscribe(CHANNEL)
        assert listener.get_message(timeout=5) is not None
        yield listener


def received(listener: Any, count: int) -> list[bytes]:
    messages = [listener.get_message(timeout=10) for _ in range(count)]
    assert listener.get_message(timeout=0) is None
    return [message["data"] for message in messages]


@contextmanager
def replica_of(server: Server) -> Iterator[Server]:
    with Server(server.binary, replicaof=f"127.0.0.1 {server.port}") as replica:
        wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        yield replica


def published(store: Store) -> int:
    """How often the server has published."""
    return int(store.client.info("commandstats").get("cmdstat_publish", {}).get("calls", 0))


def run_three(store: Store) -> None:
    """Nine transitions in three calls. One or two events of a call are published in any case."""
    enqueue(store, *names(3))
    settlements = [complete(claim) for claim in claims_of(store, *SLOTS)]
    assert set(store.broker.settle_and_claim(settlements, []).settled) == {SettleResult.DONE}
    store.client.delete(*(store.keys.record(id) for id in names(3)))


def test_without_a_subscriber_nothing_is_published(store: Store) -> None:
    run_three(store)
    assert published(store) == 0


@pytest.mark.parametrize("pattern", ["", "jobqueue:*"])
def test_a_subscriber_receives_every_transition_after_it_subscribed(store: Store, pattern: str) -> None:
    enqueue(store, *names(3, "old"))
    claims = claims_of(store, *SLOTS)
    with listening(store.server, pattern) as listener:
        store.broker.settle_and_claim([complete(claim) for claim in claims], [])
        run_three(store)
        events = received(listener, 12)
    run_three(store)
    expected = ["job:completed", "job:created", "job:started", "job:completed"]
    assert [json.loads(event)["event"] for event in events] == [name for name in expected for _ in SLOTS]
    assert published(store) == 12


def test_a_subscriber_at_a_replica_receives_every_transition(primary: Server) -> None:
    with prepared(primary) as store, replica_of(primary) as replica, listening(replica) as listener:
        run_three(store)
        assert len(received(listener, 9)) == 9


def test_while_a_replica_is_away_events_are_published_for_it(primary: Server) -> None:
    """It continues the stream of commands, which holds what was published meanwhile."""
    with prepared(primary) as store, replica_of(primary) as replica:
        replica.client().execute_command("REPLICAOF", "NO", "ONE")
        wait_until(lambda: store.client.info("replication")["connected_slaves"] == 0)
        run_three(store)
        assert published(store) == 9


@pytest.mark.parametrize("command", ["pubsub|numsub", "pubsub|numpat", "info"])
def test_a_user_who_may_not_count_subscribers_publishes_always(redis_server: Server, command: str) -> None:
    optional = ("+info", "+pubsub|numsub", "+pubsub|numpat")
    redis_server.add_user("fileq", "pass", *PERMISSIONS, *optional)
    with prepared(redis_server, **LOGIN) as store:
        run_three(store)
        assert published(store) == 0
        store.client.execute_command("ACL", "SETUSER", "fileq", f"-{command}")
        run_three(store)
        assert published(store) == 9
        assert store.client.acl_log() == []


def test_with_a_hash_tag_events_are_always_published(redis_server: Server) -> None:
    """On a cluster the subscriber may be connected to another node."""
    with prepared(redis_server, **{"redis.prefix": "{jobqueue}"}) as store:
        run_three(store)
        assert published(store) == 9


ODD = 'a"b\\c/d\n\t\b\f\r\x01\x1f\x7fé\u2028😀'
LONG = {"type": "x", "id": "y", "text": "x" * MAX_PARSED_BYTES}
JOBS = {
    "a file": a_job("a"),
    "an odd path": a_job("a", filepath=f"/data/{ODD}"),
    "a retried job": a_job("a", retries=3),
    "a type": typed_job("noop", {"type": "x", "retries": 7}, priority="low", now=CREATED, id="a"),
    "an odd type": typed_job(ODD, None, priority="low", now=CREATED, id="a"),
    "an odd id": a_job(ODD),
    "a long payload": typed_job("noop", LONG, priority="low", now=CREATED, id="a"),
    "a long payload and an odd type": typed_job(ODD, LONG, priority="low", now=CREATED, id="a"),
    "a long payload and an odd id": typed_job("noop", LONG, priority="low", now=CREATED, id="a").but(id=ODD),
    "a long payload, an odd path and no type": typed_job("noop", LONG, priority="low", now=CREATED).but(
        type=None, filepath=ODD
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_events_of_a_job_are_those_of_the_other_brokers(store: Store, name: str) -> None:
    job = JOBS[name]
    with listening(store.server) as listener:
        store.broker.enqueue([Entry(job, "low")])
        claim = claim_one(store)
        settle(store, done := complete(claim, duration_ms=17))
        events = received(listener, 3)
    expected = [wire_events.created(job), wire_events.started(claim), wire_events.settled(done)]
    assert events == [wire_events.stamped(event, START_MS) for event in expected]


EIGHT = encode(a_job("a"))
THEIRS = {
    "eight fields": foreign("a"),
    "an odd path": foreign("a", filepath=ODD),
    "a type at the end": EIGHT[:-1] + b',"payload":{"retries":5},"type":"late"}',
    "blanks": EIGHT.replace(b'"retries":0', b'"retries": 2'),
    "a type before the id": b'{"type":"x","payload":{"retries":5},' + EIGHT[1:],
    "an escaped slash": EIGHT.replace(b"/data", rb"\/data"),
}


@pytest.mark.parametrize("name", THEIRS)
def test_the_events_of_another_programs_job_are_those_of_the_other_brokers(store: Store, name: str) -> None:
    store.client.lpush("jobqueue:low_priority", THEIRS[name])
    with listening(store.server) as listener:
        claim = claim_one(store)
        assert claim.job is not None
        settle(store, done := complete(claim, duration_ms=17))
        events = received(listener, 2)
    expected = [wire_events.started(claim), wire_events.settled(done)]
    assert events == [wire_events.stamped(event, START_MS) for event in expected]
