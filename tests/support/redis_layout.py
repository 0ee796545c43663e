"""The Redis keys of the contract, and a store that holds each of them."""

import re
from contextlib import closing

from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import AdmitRequest, Entry
from fileq.core.job import Version
from fileq.core.outcome import Output
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import a_job, an_entry, dead, enqueue, register, running
from fileq.testing.conformance.producers_tests import producer_info
from tests.support.redis_store import Store
from tests.support.waiting import wait_until

# key → type, with {} for the variable parts of a key.
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
    "{prefix}:wake:{queue}": "list",
    "{prefix}:watch:{queues}": "string",
    "{prefix}:handed:{queues}": "list",
    "{prefix}:breaker_resets": "hash",
    "{prefix}:cancels": "string",
    "{prefix}:producers": "hash",
    "{prefix}:orders": "hash",
    "{prefix}:unique": "hash",
    "{prefix}:deadlines": "zset",
    "{prefix}:made:{id}": "string",
    "{prefix}:catalog": "hash",
    "{prefix}:catalog:{id}": "hash",
    "{prefix}:schedules": "zset",
    "{prefix}:schedule_states": "hash",
    "{prefix}:batches": "zset",
    "{prefix}:batches:unfinished": "zset",
    "{prefix}:batch:{id}:members": "set",
    "{prefix}:batch:{id}:dead": "set",
    "{prefix}:batch:{id}:known": "set",
    "{prefix}:batch:{id}:children": "set",
    "{prefix}:batch:{id}": "hash",
    "{prefix}:holders:{route}": "hash",
    "{prefix}:route_rate:{route}": "string",
}


def row_of(key: str, prefix: str) -> str | None:
    """The row of the table that describes this key."""
    for row in TABLE:
        name = re.escape(row).replace(r"\{prefix\}", re.escape(prefix))
        name = name.replace(r"\{hour\}", r"\d{6}").replace(r"\{id\}", ".+").replace(r"\{route\}", ".+")
        name = name.replace(r"\{queue\}", "[^,]+").replace(r"\{queues\}", ".+")
        if re.fullmatch(name, key):
            return row
    return None


def fill(store: Store) -> None:
    """Put a job into every place."""
    broker = store.broker
    moved = replace(complete(running(store, "done")), order=b"complete 1-2\n/data/done")
    assert list(broker.settle_and_claim([replace(moved, outputs=(Output(b"/out", 1, "s1"),))], []).settled) == ["done"]
    dead(store, "dead")
    enqueue(store, "gone", "waiting")
    enqueue(store, "urgent", "urgent too", queue="high")
    enqueue(store, "later", delay_ms=60_000)
    broker.cancel(["gone"])
    with closing(broker.waiter()) as waiter:
        waiter.arm()
    wait_until(lambda: store.client.exists(store.keys.handed_over))
    store.client.set(store.keys.watch, "another process", ex=60)
    broker.enqueue([an_entry("file", version=Version(b"/data/file", "s1"))], limit=50)
    register(store, "busy")
    [claim] = broker.settle_and_claim([], ["busy"]).claims
    broker.admit([AdmitRequest("mail", "busy", claim.raw, max_running_total=1, rate=1, window_ms=3_600_000)])
    broker.cancel([claim.id])
    broker.pause("low")
    broker.reset_breaker("mail")
    broker.report_producer("p1", producer_info(), 60_000)
    broker.enqueue([Entry(a_job("one", unique_key="the only", deadline="2030-01-01T00:00:00Z"), "low")])
    broker.put_document("webhooks", "a", b"{}")
    broker.define_schedule("nightly", "r1", 1000)
    broker.create_batch(NewBatch("b"))
    broker.create_batch(NewBatch("child", parent="b"))
    broker.join_batch("b", ["unknown", "waiting", "dead"])


def types_of(store: Store) -> dict[str, str]:
    return {key.decode(): store.client.type(key).decode() for key in store.client.scan_iter(count=1000)}
