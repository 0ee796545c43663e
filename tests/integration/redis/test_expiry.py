"""When keys expire: the heartbeats, the records of ended jobs, the hourly counters and the rate counter."""

from collections.abc import Iterator

import pytest

from fileq.brokers.types import EnqueueResult
from fileq.core.job import Version
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import an_entry, dead, register, running, settle, worker_info
from tests.support.redis_layout import fill, row_of, types_of
from tests.support.redis_store import Store


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


def seconds_left(store: Store, key: str) -> float:
    return store.client.pttl(key) / 1000


def test_each_key_expires_as_configured_or_never(redis_server):
    settings = {"worker.heartbeat_ttl": "40s", "worker.history_ttl": "2h", "observability.stats_retention": "5d"}
    with Store(redis_server, **settings) as store:
        fill(store)
        hour = int(store.client.time()[0]) // 3600
        expiring = {key for key in types_of(store) if store.client.pttl(key) >= 0}
        assert {row_of(key, "jobqueue") for key in expiring - {"jobqueue:rate_limit:producer"}} == {
            "{prefix}:processing:worker:{id}",
            "{prefix}:job:{id}",
            "{prefix}:stats:{hour}",
            "{prefix}:route_rate:{route}",
            "{prefix}:made:{id}",
            *("{prefix}:wake:{queue}", "{prefix}:watch:{queues}", "{prefix}:handed:{queues}"),
        }
        assert 30 < seconds_left(store, "jobqueue:processing:worker:busy") <= 40
        assert {key for key in expiring if ":job:" in key} == {"jobqueue:job:done", "jobqueue:job:gone"}
        assert 7190 < seconds_left(store, "jobqueue:job:done") <= 7200
        assert 7190 < seconds_left(store, "jobqueue:job:gone") <= 7200
        assert 431_990 < max(seconds_left(store, f"jobqueue:stats:{h}") for h in (hour, hour - 1)) <= 432_000


def test_a_heartbeat_is_prolonged_by_renewal_claim_and_settlement(store):
    key = "jobqueue:processing:worker:w1"
    claim = running(store, "a")
    for call in (
        lambda: store.broker.renew([("w1", claim.raw)]),
        lambda: settle(store, complete(claim)),
        lambda: running(store, "b"),
    ):
        store.client.pexpire(key, 5000)
        call()
        assert 25 < seconds_left(store, key) <= 30


def test_a_heartbeat_that_lasts_longer_than_its_lease_is_shortened_to_it(store):
    """The server's clock has stepped back by an hour. The slot may be alive, so it gets one more lease."""
    store.broker.register({"w1": worker_info(lease_ms=30_000), "long": worker_info(lease_ms=90_000)})
    store.broker.register({"silent": worker_info()})  # a version of fileq that does not say
    for slot in ("w1", "long", "silent"):
        store.client.pexpire(f"jobqueue:processing:worker:{slot}", 3_600_000)
    store.client.pexpire("jobqueue:processing:worker:long", 80_000)
    assert store.broker.suspects() == []
    assert 25 < seconds_left(store, "jobqueue:processing:worker:w1") <= 30
    assert 70 < seconds_left(store, "jobqueue:processing:worker:long") <= 80
    assert seconds_left(store, "jobqueue:processing:worker:silent") > 3000


def test_a_window_of_the_rate_limit_that_is_too_long_has_ended(store):
    """The server's clock has stepped back by an hour."""
    entries = [an_entry(id, version=Version(id.encode(), "1-1")) for id in ("a", "b")]
    assert store.broker.enqueue(entries[:1], limit=1).permits == 1
    store.client.pexpire("jobqueue:rate_limit:producer", 3_600_000)
    assert store.broker.enqueue(entries[1:], limit=1).results == (EnqueueResult.ENQUEUED,)
    assert seconds_left(store, "jobqueue:rate_limit:producer") <= 1


def test_registering_again_does_not_prolong_a_heartbeat(store):
    """It changes the information about a slot; only a renewal proves that the slot is alive."""
    register(store, "w1")
    store.client.pexpire("jobqueue:processing:worker:w1", 5000)
    register(store, "w1")
    assert seconds_left(store, "jobqueue:processing:worker:w1") <= 5


def test_the_rate_counter_counts_and_expires_with_its_window(store):
    entries = [an_entry(f"f{n}", version=Version(b"/data/%d" % n, "s1")) for n in range(3)]
    store.broker.enqueue(entries, limit=50)
    with store.client.pipeline() as look:
        used, left_ms = look.get("jobqueue:rate_limit:producer").pttl("jobqueue:rate_limit:producer").execute()
    assert (used, left_ms) == (None, -2) or (used == b"3" and 0 < left_ms <= 1000)


def test_a_rate_counter_without_an_expiry_gets_one(store):
    """A program died before it set the expiry: the limit must not throttle for ever."""
    store.client.set("jobqueue:rate_limit:producer", 50)
    answer = store.broker.enqueue([an_entry("a", version=Version(b"/data/a", "s1"))], limit=50)
    assert answer.results == ("throttled",)
    assert 0 < answer.wait_ms <= 1000
    assert store.client.pttl("jobqueue:rate_limit:producer") != -1


def test_the_record_of_a_dead_job_does_not_expire(store):
    dead(store, "a")
    assert store.client.pttl("jobqueue:job:a") == -1
