"""The Redis keys of the contract: their names, types and contents, as any other client sees them."""

import json
import re
from collections.abc import Iterator

import pytest

from fileq.core.job import Version
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    CREATED,
    EIGHT_FIELDS,
    burial,
    completed,
    dead,
    enqueue,
    failed,
    register,
    running,
    settle,
)
from tests.support.redis_layout import TABLE, fill, row_of, types_of
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import GARBAGE, Store, claimed

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


# names and types


@pytest.mark.parametrize("prefix", ["jobqueue", "other", "{tag}"])
def test_every_key_has_its_name_and_type(redis_server, prefix):
    with Store(redis_server, **{"redis.prefix": prefix}) as store:
        fill(store)
        store.client.set(store.keys.rate_limit, 1, ex=60)  # it may have run out by now
        found = {row_of(key, prefix): kind for key, kind in types_of(store).items()}
    assert found == TABLE


def test_a_key_with_a_setting_of_its_own_does_not_depend_on_the_prefix(redis_server):
    with Store(redis_server, **{"redis.prefix": "other", **OWN_NAMES}) as store:
        fill(store)
        store.client.set(store.keys.rate_limit, 1, ex=60)
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
        *(
            *("{prefix}:wake:{queue}", "{prefix}:watch:{queues}", "{prefix}:handed:{queues}"),
            "{prefix}:orders",
            "{prefix}:unique",
            "{prefix}:deadlines",
            "{prefix}:made:{id}",
            "{prefix}:catalog",
            "{prefix}:catalog:{id}",
        ),
        *("{prefix}:schedules", "{prefix}:schedule_states", "{prefix}:batches", "{prefix}:batches:unfinished"),
        *("{prefix}:batch:{id}", "{prefix}:batch:{id}:members", "{prefix}:batch:{id}:dead"),
        *("{prefix}:batch:{id}:known", "{prefix}:batch:{id}:children"),
        *(
            "{prefix}:breaker_resets",
            "{prefix}:cancels",
            "{prefix}:producers",
            "{prefix}:holders:{route}",
            "{prefix}:route_rate:{route}",
        ),
    }


def test_an_added_queue_has_a_list_named_after_it(redis_server):
    with Store(redis_server, **{"worker.priorities": ["high", "night", "low"]}) as store:
        enqueue(store, "a", queue="night")
        assert store.client.llen("jobqueue:night_priority") == 1


@pytest.mark.parametrize("prefix", ["jobqueue", "other"])
def test_no_method_leaves_a_key_outside_the_table(redis_server, prefix):
    with Store(redis_server, **{"redis.prefix": prefix}) as store:
        use_every_method(store.broker, store.client, store.keys)
        for key, kind in types_of(store).items():
            assert TABLE.get(row_of(key, prefix) or "") == kind, key


def test_deregistered_slots_leave_no_key_behind(store):
    claimed(store, "w1", "w2")
    store.broker.deregister(["w1", "w2"])
    assert not [key for key in types_of(store) if "w1" in key or "w2" in key]
    assert not {"jobqueue:workers", "jobqueue:settled"} & set(types_of(store))


# what they hold


def test_lrange_shows_plain_job_json_of_eight_fields_in_order(store):
    """As seen by an operator with redis-cli."""
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


def test_jobs_are_pushed_left_and_claimed_right(store):
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


def test_a_record_holds_state_worker_result_and_attempts(store):
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


def test_the_registry_describes_each_worker_in_json(store):
    register(store, "w1")
    info = json.loads(store.client.hget("jobqueue:workers", "w1"))
    assert info.keys() >= {"host", "pid", "started_ms", "version", "queues"}


def test_settled_has_one_entry_for_each_worker(store):
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
