"""Jobs of other programs that are too long to be decoded. On Redis the claim buries them: they reach no worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from fileq.actions.bulk import JobAction
from fileq.brokers.redis.scripts import _needed_by
from fileq.core.errors import BrokerError
from fileq.core.job import MAX_PARSED_BYTES, encode, raw_id
from fileq.testing.conformance.builders import a_job, claims_of, counter, drift, foreign, names, register
from tests.support.bulk_actions import act_on_all
from tests.support.command_line import CommandLine
from tests.support.redis_store import Store

QUEUE, DEAD = "jobqueue:low_priority", "jobqueue:dead_letter"
MEGABYTE = 1 << 20


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


def too_long(id: str) -> bytes:
    return foreign(id, filepath="", type="note", payload="x" * (20 * MEGABYTE))


def bytes_sent(client: Redis) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def test_the_claim_buries_it_and_gives_the_slot_the_next_job(store: Store) -> None:
    raw = too_long("long")
    store.client.lpush(QUEUE, raw, encode(a_job("b")))
    register(store, "w1")
    before = bytes_sent(store.client)
    reply = store.broker.settle_and_claim([], ["w1"])
    assert [claim.id for claim in reply.claims] == ["b"]
    assert [(found.id, found.slot, found.queue) for found in reply.buried] == [(raw_id(raw), "w1", "low")]
    assert bytes_sent(store.client) - before < MEGABYTE
    processing, heartbeat = store.keys.of_slot("w1")
    assert (store.client.lrange(processing, 0, -1), store.client.strlen(heartbeat) < MEGABYTE) == (
        [reply.claims[0].raw],
        True,
    )
    assert store.client.lrange(DEAD, 0, -1) == [raw]
    assert store.client.hstrlen(store.keys.record(raw_id(raw)), "json") == 0, "the bytes are stored once"
    assert drift(store) == 0


def test_jobs_around_it_are_claimed_once(store: Store) -> None:
    raws = [encode(a_job("a")), too_long("long"), encode(a_job("b")), encode(a_job("c")), encode(a_job("d"))]
    store.client.lpush(QUEUE, *raws)
    register(store, "w1", "w2", "w3")
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1", "w2", "w3"]).claims] == ["a", "b", "c"]
    assert store.client.lrange(QUEUE, 0, -1) == raws[-1:]
    assert store.client.lrange(DEAD, 0, -1) == [raws[1]]


ODD_TYPE = encode(a_job("a", type='a"b', payload=msgspec.Raw(b'"' + b"x" * (2 * MEGABYTE) + b'"')))
LONG_JOBS = {
    "another form": foreign("a", payload="x" * (2 * MEGABYTE)),
    "another form, many fields": foreign("a", **{f"k{i}": 1 for i in range(200_000)}),
    "a quote in the type": ODD_TYPE,
    "a quote in the path": ODD_TYPE.replace(b"/data", b'/d\\"ata').replace(b'a\\"b', b"t"),
    "a quote in the id": ODD_TYPE.replace(b'"id":"a"', b'"id":"a\\"b"'),
    "a long path": ODD_TYPE.replace(b"/data", b"/data" * MEGABYTE),
    "a payload before the type": ODD_TYPE.replace(b'"filesize"', b'"payload":{"type":"x"},"filesize"'),
}


@pytest.mark.parametrize("raw", LONG_JOBS.values(), ids=LONG_JOBS.keys())
def test_no_script_parses_more_of_it_than_the_bound(store: Store, raw: bytes) -> None:
    """medium, large pushed jobs: one LPUSH of 16 MB, or a type with a quote, stopped the server for seconds.

    The functions of the scripts run on the server with a `cjson` that notes how many bytes it gets."""
    noting = b"""
      local real, most = cjson, 0
      local cjson = { decode = function(raw) most = math.max(most, #raw); return real.decode(raw) end }
    """
    calls = b"read_id(JOB)\nevent_fields(JOB)\nreturn most\n"
    functions = b"".join(part for part in _needed_by(calls) if b"KEYS" not in part and b"ARGV" not in part)
    script = noting + b"local JOB = ARGV[1]\n" + functions + calls
    assert store.client.eval(script, 0, raw) <= MAX_PARSED_BYTES
    texts = resources.files("fileq.brokers.redis") / "lua"
    parsing = [path.name for path in Path(str(texts)).rglob("*.lua") if "cjson.decode" in path.read_text()]
    assert parsing == ["jobs.lua"], "parse_json() is the only one that parses"


def test_an_idle_worker_wakes_without_receiving_it(store: Store) -> None:
    raw = foreign("long", filepath="", type="note", payload="x" * (60 * MEGABYTE))
    with contextlib.closing(store.broker.waiter()) as waiter:
        waiter.arm()
        before = bytes_sent(store.client)
        store.client.lpush(QUEUE, raw)
        assert waiter.wait(20.0) is True
        assert bytes_sent(store.client) - before < len(raw) // 2
        assert store.client.llen(QUEUE) == 1


def test_one_call_buries_one_and_the_next_calls_the_others(store: Store) -> None:
    store.client.lpush(QUEUE, too_long("1"), too_long("2"), encode(a_job("b")), encode(a_job("c")))
    slots = names(2, "w")
    first = claims_of(store, *slots)
    assert (first, store.client.llen(DEAD)) == ([], 1)
    second = store.broker.settle_and_claim([], slots)
    assert ([claim.id for claim in second.claims], len(second.buried)) == (["b", "c"], 1)
    assert (store.client.llen(DEAD), counter(store, "dead"), drift(store)) == (2, 2, 0)


def test_it_stays_in_its_queue_while_the_dead_letter_list_is_something_else(store: Store) -> None:
    raw = too_long("long")
    store.client.lpush(QUEUE, raw)
    store.client.set(DEAD, "of another program")
    register(store, "w1")
    with pytest.raises(BrokerError, match="WRONGTYPE"):
        store.broker.settle_and_claim([], ["w1"])
    assert store.client.lrange(QUEUE, 0, -1) == [raw]
    assert not store.client.exists(store.keys.records + raw_id(raw))
    store.client.delete(DEAD)
    assert len(store.broker.settle_and_claim([], ["w1"]).buried) == 1
    assert drift(store) == 0


def test_long_dead_jobs_are_read_and_removed_a_few_at_a_time(store: Store) -> None:
    raws = [foreign(id, filepath="", type="note", payload="x" * MEGABYTE) for id in names(40)]
    for raw in raws:
        store.client.lpush(DEAD, raw)
    pages = list(store.broker.pages("dead_letter"))
    assert [raw for page in pages for raw in page] == raws
    assert max(map(len, pages)) <= 16
    store.client.config_resetstat()
    assert act_on_all(store.broker, store.config, JobAction.DELETE).count == 40
    calls = {name: stats["calls"] for name, stats in store.client.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] >= 40
    assert calls["cmdstat_lrange"] <= 10, "no script reads the list"


def test_of_copies_of_a_long_dead_job_the_oldest_is_removed_first(store: Store) -> None:
    raw, other = (foreign(id, filepath="", type="note", payload="x" * MEGABYTE) for id in ("a", "b"))
    store.client.lpush(DEAD, raw, other, raw)
    assert store.broker.discard([("a", raw)]) == [True]
    assert store.client.lrange(DEAD, 0, -1) == [raw, other]
    assert store.broker.discard([("b", other), ("a", raw), ("a", raw)]) == [True, True, False]


def test_the_commands_for_dead_jobs_take_it(shell: CommandLine) -> None:
    raw = too_long("long")
    shell.push("low", raw)
    assert "dead 1" in shell.run("worker", "--once", code=3)
    [dead] = shell.json("dlq", "list")["jobs"]
    assert (dead["id"], f"it has {len(raw)} bytes" in dead["error"]) == (raw_id(raw), True)
    assert "at most" in shell.run("show", raw_id(raw))
    shell.run("admin", "fsck")
    assert shell.run("dlq", "retry", raw_id(raw), code=1)
    assert "1 job deleted" in shell.run("dlq", "delete", raw_id(raw))
    shell.push("low", raw)
    shell.run("worker", "--once", code=3)
    shell.run("admin", "purge-dlq", "--yes")
    shell.run("admin", "fsck")
    assert (shell.broker.census().dead, drift(shell)) == (0, 0)
