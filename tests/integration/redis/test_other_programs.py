"""Other programs on the same server: they push jobs, listen to events, or use the server for themselves."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from fileq.core.job import State, raw_id
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    burial,
    claim_one,
    drift,
    enqueue,
    foreign,
    record_of,
    register,
    settle,
)
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import Store


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


@pytest.mark.parametrize("queue", ["high", "low"])
def test_a_job_of_eight_fields_pushed_by_another_program_is_processed_like_one_of_fileq(store, queue):
    raw = foreign("theirs", priority=queue)
    store.client.execute_command("LPUSH", f"jobqueue:{queue}_priority", raw)
    register(store, "w1")
    [claim] = store.broker.settle_and_claim([], ["w1"]).claims
    assert (claim.raw, claim.id, claim.queue) == (raw, "theirs", queue)
    assert record_of(store, "theirs").state == "running"
    assert settle(store, complete(claim)) is SettleResult.DONE
    assert store.client.lrange("jobqueue:completed", 0, -1) == [raw]
    assert record_of(store, "theirs").state == "completed"
    assert store.broker.census().drift == 0


def test_events_are_json_with_exactly_the_fields_of_the_contract(store):
    fields = [
        "event",
        "job_id",
        "type",
        "priority",
        "worker_id",
        "duration_ms",
        "error",
        "retry_count",
        "filepath",
        "at",
    ]
    with store.server.client().pubsub() as listener:
        listener.subscribe("jobqueue:events")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        use_every_method(store.broker, store.client)
        messages = [m["data"] for m in iter(lambda: listener.get_message(timeout=0.1), None)]
    events = [json.loads(message) for message in messages]
    assert {event["event"] for event in events} == {
        *("job:created", "job:started", "job:completed", "job:failed", "job:dead", "job:recovered", "job:cancelled"),
        "job:deferred",
        "batch:finished",
    }
    counts = ["total", "completed", "dead", "cancelled", "deleted"]
    for event in events:
        if event["event"] == "batch:finished":
            assert list(event) == ["event", "batch_id", *counts, "at"]
            continue
        assert list(event) == fields
        assert isinstance(event["duration_ms"], int)
        assert isinstance(event["retry_count"], int)


def test_events_go_to_the_channel_of_the_prefix(redis_server):
    with Store(redis_server, **{"redis.prefix": "other"}) as store, redis_server.client().pubsub() as listener:
        listener.subscribe("other:events")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        enqueue(store, "a")
        message = listener.get_message(timeout=5)
    assert json.loads(message["data"])["job_id"] == "a"


def test_two_prefixes_share_a_server_and_nothing_else(redis_server):
    with Store(redis_server) as one, Store(redis_server, **{"redis.prefix": "other"}) as two:
        enqueue(one, "a")
        register(two, "w1")
        assert two.broker.settle_and_claim([], ["w1"]).claims == ()
        assert two.broker.census().pending == {"high": 0, "low": 0}
        with closing(two.broker.waiter()) as waiter:
            waiter.arm()
            assert waiter.wait(0.05) is False


@pytest.mark.parametrize("id", [b"\xff\xfe", b"a\xffb", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf0\xc2\x80\x80", b"\xe2\x82"])
@pytest.mark.parametrize("form", [b'{"id":"@","filepath":"/d/a",%s', b'{"filepath":"/d/a", "id":"@",%s'])
def test_an_id_that_is_not_utf8_leaves_no_record(store: Store, id: bytes, form: bytes) -> None:
    """S5: the claim made a record under it that no program can name, and it was `running` for ever."""
    rest = foreign("@").partition(b'"filesize"')
    store.client.lpush("jobqueue:low_priority", (form % b"".join(rest[1:])).replace(b"@", id))
    claim = claim_one(store)
    assert (claim.job, claim.record_id) == (None, None)
    settle(store, burial(claim))
    assert store.client.keys("jobqueue:job:*") == [f"jobqueue:job:{raw_id(claim.raw)}".encode()]
    assert drift(store) == 0


@pytest.mark.parametrize("id", ["é", "ࠀ", "日本", "🗂", "\U0010ffff", "\ud7ff", "\ue000"])
def test_an_id_of_any_characters_is_one(store: Store, id: str) -> None:
    """S5"""
    store.client.lpush("jobqueue:low_priority", foreign(id))
    assert claim_one(store).record_id == id
    assert record_of(store, id).state is State.RUNNING
