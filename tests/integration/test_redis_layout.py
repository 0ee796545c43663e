"""The keys of SPEC §3 to the letter: their names, types, contents and expiries, as any other client sees them."""

import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from fileq.core.job import Version
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import (
    CREATED,
    EIGHT_FIELDS,
    an_entry,
    burial,
    completed,
    dead,
    enqueue,
    failed,
    foreign,
    record_of,
    register,
    running,
    settle,
)
from tests.support.redis_store import GARBAGE, Store, claimed, whole_life

# key → type, with {} for what a name is made of.
TABLE = {
    "{prefix}:high_priority": "list",
    "{prefix}:low_priority": "list",
    "{prefix}:worker:{id}:processing": "list",
    "{prefix}:processing:worker:{id}": "string",
    "{prefix}:completed": "list",
    "{prefix}:dead_letter": "list",
    "{prefix}:cancelled": "list",
    "{prefix}:rate_limit:producer": "string",
    "{prefix}:scheduled": "zset",
    "{prefix}:job:{id}": "hash",
    "{prefix}:workers": "hash",
    "{prefix}:settled": "hash",
    "{prefix}:ledger": "hash",
    "{prefix}:stats": "hash",
    "{prefix}:stats:{hour}": "hash",
    "{prefix}:paused": "set",
}
OWN_NAMES = {
    "worker.queues": {"high": "my:urgent", "low": "my:rest"},
    "worker.processing_list_pattern": "my:lists:%s",
    "worker.heartbeat_key_pattern": "my:%s:beat",
    "worker.completed_list": "my:done",
    "worker.dead_letter_list": "my:dead",
    "producer.rate_limit_key": "my:limit",
}


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


def row_of(key: str, prefix: str) -> str | None:
    """The row of the table that a key belongs to."""
    for row in TABLE:
        name = re.escape(row).replace(r"\{prefix\}", re.escape(prefix))
        name = name.replace(r"\{hour\}", r"\d{6}").replace(r"\{id\}", ".+")
        if re.fullmatch(name, key):
            return row
    return None


def fill(store: Store) -> None:
    """Something in every place at once."""
    broker = store.broker
    completed(store, "done")
    dead(store, "dead")
    enqueue(store, "gone", "waiting")
    enqueue(store, "urgent", "urgent too", queue="high")
    enqueue(store, "later", delay_ms=60_000)
    broker.cancel(["gone"])
    broker.enqueue([an_entry("file", version=Version(b"/data/file", "s1"))], limit=50)
    register(store, "busy")
    assert broker.settle_and_claim([], ["busy"]).claims
    broker.pause("low")


def types_of(store: Store) -> dict[str, str]:
    return {key.decode(): store.client.type(key).decode() for key in store.client.scan_iter(count=1000)}


# names and types


@pytest.mark.parametrize("prefix", ["jobqueue", "other", "{tag}"])
def test_every_key_has_its_name_and_type(redis_server, prefix):
    with Store(redis_server, **{"redis.prefix": prefix}) as store:
        fill(store)
        store.client.set(store.broker.names.rate_limit, 1, ex=60)  # it may have run out by now
        found = {row_of(key, prefix): kind for key, kind in types_of(store).items()}
    assert found == TABLE


def test_a_name_with_a_setting_of_its_own_keeps_it_whatever_the_prefix(redis_server):
    with Store(redis_server, **{"redis.prefix": "other", **OWN_NAMES}) as store:
        fill(store)
        store.client.set(store.broker.names.rate_limit, 1, ex=60)
        found = types_of(store)
    mine = {key: kind for key, kind in found.items() if key.startswith("my:")}
    assert mine.items() >= {
        ("my:urgent", "list"),
        ("my:rest", "list"),
        ("my:lists:busy", "list"),
        ("my:busy:beat", "string"),
        ("my:done", "list"),
        ("my:dead", "list"),
        ("my:limit", "string"),
    }
    assert {row_of(key, "other") for key in found.keys() - mine.keys()} == {
        *("{prefix}:cancelled", "{prefix}:scheduled", "{prefix}:job:{id}", "{prefix}:workers", "{prefix}:settled"),
        *("{prefix}:ledger", "{prefix}:stats", "{prefix}:stats:{hour}", "{prefix}:paused"),
    }


def test_a_queue_of_ones_own_has_a_list_of_its_own(redis_server):
    with Store(redis_server, **{"worker.priorities": ["high", "night", "low"]}) as store:
        enqueue(store, "a", queue="night")
        assert store.client.llen("jobqueue:night_priority") == 1


@pytest.mark.parametrize("prefix", ["jobqueue", "other"])
def test_a_whole_life_leaves_no_key_outside_the_table(redis_server, prefix):
    with Store(redis_server, **{"redis.prefix": prefix}) as store:
        whole_life(store.broker, store.client)
        for key, kind in types_of(store).items():
            assert TABLE.get(row_of(key, prefix) or "") == kind, key


def test_slots_that_left_leave_nothing_behind(store):
    claimed(store, "w1", "w2")
    store.broker.deregister(["w1", "w2"])
    assert not [key for key in types_of(store) if "w1" in key or "w2" in key]
    assert not {"jobqueue:workers", "jobqueue:settled"} & set(types_of(store))


# what they hold


def test_lrange_shows_plain_job_json_of_eight_fields_in_order(store):
    """The look of somebody who knows nothing of fileq."""
    enqueue(store, "a")
    [raw] = store.client.execute_command("LRANGE", "jobqueue:low_priority", 0, -1)
    assert list(json.loads(raw)) == list(EIGHT_FIELDS)
    assert json.loads(raw) == {
        "id": "a",
        "filepath": "/data/a.pdf",
        "filesize": 4096,
        "priority": "low",
        "retries": 0,
        "creation_time": CREATED,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
    }
    assert b" " not in raw


def test_jobs_are_pushed_left_and_taken_right(store):
    enqueue(store, "first", "second")
    raws = store.client.lrange("jobqueue:low_priority", 0, -1)
    assert [json.loads(raw)["id"] for raw in raws] == ["second", "first"]
    register(store, "w1")
    [claim] = store.broker.settle_and_claim([], ["w1"]).claims
    assert claim.id == "first"


def test_the_processing_list_holds_the_job_and_the_heartbeat_its_json(store):
    register(store, "w1")
    assert store.client.get("jobqueue:processing:worker:w1") == b""
    claim = running(store, "a")
    assert store.client.lrange("jobqueue:worker:w1:processing", 0, -1) == [claim.raw]
    assert store.client.get("jobqueue:processing:worker:w1") == claim.raw
    settle(store, complete(claim))
    assert store.client.exists("jobqueue:worker:w1:processing") == 0
    assert store.client.get("jobqueue:processing:worker:w1") == b""


def test_completed_is_newest_left_and_trimmed_with_its_records(redis_server):
    with Store(redis_server, **{"worker.completed_max": 2}) as store:
        completed(store, "a", "b", "c")
        raws = store.client.lrange("jobqueue:completed", 0, -1)
        assert [json.loads(raw)["id"] for raw in raws] == ["c", "b"]
        assert store.client.exists("jobqueue:job:a", "jobqueue:job:b", "jobqueue:job:c") == 2


def test_a_dead_job_carries_its_error_and_the_time(store):
    dead(store, "a")
    [raw] = store.client.lrange("jobqueue:dead_letter", 0, -1)
    job = json.loads(raw)
    assert list(job) == [*EIGHT_FIELDS, "error", "failed_at"]
    assert job["failed_at"].endswith("Z")


def test_bytes_that_are_no_job_are_dead_byte_for_byte_with_the_reason_in_their_record(store):
    store.client.lpush("jobqueue:low_priority", GARBAGE)
    register(store, "w1")
    [claim] = store.broker.settle_and_claim([], ["w1"]).claims
    settle(store, burial(claim, error=claim.defect))
    assert store.client.lrange("jobqueue:dead_letter", 0, -1) == [GARBAGE]
    [record] = store.client.keys("jobqueue:job:*")
    assert re.fullmatch(rb"jobqueue:job:raw-[0-9a-f]{40}", record)
    assert b"not a job" in store.client.hget(record, "error")


def test_scheduled_scores_are_due_times_by_the_servers_clock(store):
    before, after = [store.client.time()], []
    enqueue(store, "a", delay_ms=60_000)
    claim = running(store, "b")
    settle(store, failed(claim, delay_ms=90_000))
    after.append(store.client.time())
    low, high = (seconds * 1000 + micros / 1000 for seconds, micros in (*before, *after))
    (_, first), (_, second) = store.client.zrange("jobqueue:scheduled", 0, -1, withscores=True)
    assert low - 1 <= first - 60_000 <= high
    assert low - 1 <= second - 90_000 <= high


def test_a_record_tells_the_whole_story(store):
    claim = running(store, "a")
    assert store.client.hgetall("jobqueue:job:a").items() >= {
        (b"state", b"running"),
        (b"json", claim.raw),
        (b"queue", b"low"),
        (b"worker", b"w1"),
    }
    settle(store, complete(claim, result=b'{"pages":3}'))
    record = store.client.hgetall("jobqueue:job:a")
    assert record[b"state"] == b"completed"
    assert record[b"result"] == b'{"pages":3}'
    attempt = json.loads(record[b"attempt:1"])
    assert (attempt["worker"], attempt["outcome"]) == ("w1", "completed")


def test_the_registry_tells_of_each_worker_in_json(store):
    register(store, "w1")
    info = json.loads(store.client.hget("jobqueue:workers", "w1"))
    assert info.keys() >= {"host", "pid", "started_ms", "version", "queues"}


def test_settled_has_an_entry_a_worker(store):
    completed(store, "a")
    completed(store, "b")
    assert store.client.hkeys("jobqueue:settled") == [b"w1"]


def test_the_ledger_keeps_the_last_eight_versions_newest_first(store):
    for n in range(10):
        enqueue(store, f"job{n}", version=Version(b"/data/a", f"sig{n}"))
    assert store.client.hkeys("jobqueue:ledger") == [b"/data/a"]
    lines = store.client.hget("jobqueue:ledger", "/data/a").split(b"\n")
    assert [line for line in lines if line.startswith(b"sig")] == [b"sig%d job%d" % (n, n) for n in range(9, 1, -1)]


def test_paused_holds_the_names_of_queues(store):
    store.broker.pause("low")
    assert store.client.smembers("jobqueue:paused") == {b"low"}


def test_counters_are_kept_for_all_time_and_by_the_hour(store):
    completed(store, "a")
    hour = int(store.client.time()[0]) // 3600
    total = store.client.hgetall("jobqueue:stats")
    assert total[b"produced"] == total[b"completed"] == b"1"
    hourly = store.client.hgetall(f"jobqueue:stats:{hour}") or store.client.hgetall(f"jobqueue:stats:{hour - 1}")
    assert hourly == total


# expiries


def seconds_left(store: Store, key: str) -> float:
    return store.client.pttl(key) / 1000


def test_each_key_expires_when_the_table_says(redis_server):
    settings = {"worker.heartbeat_ttl": "40s", "worker.history_ttl": "2h", "observability.stats_retention": "5d"}
    with Store(redis_server, **settings) as store:
        fill(store)
        hour = int(store.client.time()[0]) // 3600
        expiring = {key for key in types_of(store) if store.client.pttl(key) >= 0}
        assert {row_of(key, "jobqueue") for key in expiring - {"jobqueue:rate_limit:producer"}} == {
            "{prefix}:processing:worker:{id}",
            "{prefix}:job:{id}",
            "{prefix}:stats:{hour}",
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


def test_registering_again_does_not_prolong_a_heartbeat(store):
    """It changes what is said of a slot; that it lives, only renewal says."""
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


def test_a_rate_counter_without_an_end_is_given_one(store):
    """Counted by a program that died before it set one: never stuck."""
    store.client.set("jobqueue:rate_limit:producer", 50)
    answer = store.broker.enqueue([an_entry("a", version=Version(b"/data/a", "s1"))], limit=50)
    assert answer.fates == ("throttled",)
    assert 0 < answer.wait_ms <= 1000
    assert store.client.pttl("jobqueue:rate_limit:producer") != -1


def test_a_dead_jobs_record_lives_as_long_as_it_is_dead(store):
    dead(store, "a")
    assert store.client.pttl("jobqueue:job:a") == -1


# other programs


@pytest.mark.parametrize("queue", ["high", "low"])
def test_a_job_of_eight_fields_pushed_by_another_program_is_processed_like_our_own(store, queue):
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
    fields = ["event", "job_id", "type", "priority", "worker_id", "duration_ms", "error", "retry_count"]
    with store.server.client().pubsub() as listener:
        listener.subscribe("jobqueue:events")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        whole_life(store.broker, store.client)
        messages = [m["data"] for m in iter(lambda: listener.get_message(timeout=0.1), None)]
    events = [json.loads(message) for message in messages]
    assert {event["event"] for event in events} == {
        *("job:created", "job:started", "job:completed", "job:failed", "job:dead", "job:recovered", "job:cancelled")
    }
    for event in events:
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
