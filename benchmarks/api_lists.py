"""Measures what each list of the REST API costs Redis: python -m benchmarks.api_lists [--only /dead]

A private Redis server is filled with 1,000,000 waiting and 100,000 dead jobs, with 10,000 delayed, completed and
cancelled ones each, known files, batches and audit entries. Then the server of `fileq serve`, in this process, answers
the first page of each list several times: without filters, and with filters that many jobs, few jobs or none meet. A
row has the CPU time of Redis for one request (least and median), the commands, those in scripts included, and how often
Redis read from a connection, which is about the number of round trips. `--redis HOST:PORT` fills a server of yours on
this machine and keeps it, or uses it as an earlier run has filled it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis

from fileq.brokers import open_broker
from fileq.brokers.batches import NewBatch
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.commands.audit_entries import AUDIT, AuditEntry
from fileq.config import config_from
from fileq.core.job import Claim, Job, Version, file_job, typed_job, wall_clock_ms
from fileq.core.settlement import Settlement, complete
from fileq.server.routes import ROUTES
from fileq.testing.conformance.builders import burial, failed, worker_info
from tests.support.api_client import ADMIN_KEY, API, ApiClient, served_broker
from tests.support.servers import Server, available_servers

QUEUES = ("high", "low")
ERRORS = (
    "ValueError: row {n} is bad",
    "FileNotFoundError: [Errno 2] No such file or directory: '/srv/inbox/{n}.csv'",
    "TimeoutError: no answer of db-{n} after 30 s",
    "KeyError: 'invoice'",
    "exit status 3: cannot convert page {n}",
)
TRACEBACK = "Traceback (most recent call last):\n" + '  File "/srv/tasks.py", line 12, in convert\n    read()\n' * 40
CHUNK = 1000
SLOTS = 500
TIMES = 7
OTHERS = {"/config", "/events", "/files/content", "/files/trace", "/openapi.json", "/whoami", "/ws"}  # no lists
FILTERS = (
    *("type=report", "type=none", "priority=low", "queue=low", "match=*.csv", "match=*.none", "tag.team=blue"),
    *("tag.team=none", "error=ValueError", "error=none", "q=report", "q=none", "since=1h", "until=1h", "worker=slot-1"),
    *("batch=batch-2", "schedule=none", "fingerprint=ffff", "limit=1000", "page=500", "match=*.none&since=1h"),
)
STATES = ("pending", "scheduled", "running", "retrying", "deferred", "completed", "dead", "cancelled")


class Cost(NamedTuple):
    """Of one request."""

    cpu_ms: float
    commands: int
    reads: int
    bytes: int


def requests() -> Iterator[str]:
    """The first page of every list; AssertionError for a new one that is not here."""
    variants: dict[str, Sequence[str]] = {
        "/jobs": (*(f"status={state}" for state in STATES), *FILTERS, *(f"status=completed&{one}" for one in FILTERS)),
        "/dead": FILTERS,
        "/dead/groups": (*(f"by={by}" for by in ("directory", "kind", "type")), "limit=1000", *FILTERS[:-3]),
        "/files": ("under=/srv/inbox/5", "match=*.none", "status=dead", "status=expired", "limit=500"),
        "/files/tree": ("depth=3", "under=/srv/inbox/5"),
        "/batches": ("unfinished=true", "limit=100"),
        "/audit": ("limit=1000",),
        "/stats/hourly": ("hours=720",),
    }
    known = {route.path for route in ROUTES if route.method == "GET" and "{" not in route.path} - OTHERS
    assert variants.keys() <= known
    for path in sorted(known):
        yield path
        yield from (f"{path}?{one}" for one in variants.get(path, ()))
    yield from ("/batches/batch-2/dead", "/webhooks/hook-1/deliveries")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--redis", metavar="HOST:PORT", help="a server on this machine that is kept")
    parser.add_argument("--only", default="", help="requests that contain this text")
    options = parser.parse_args()
    with contextlib.ExitStack() as opened:
        address = options.redis
        if address is None:
            address = opened.enter_context(
                Server(available_servers()["redis"] or available_servers()["valkey"])
            ).address
        server = {"port": 0, "api_key": ADMIN_KEY, "rate_limit": "100000/s"}
        config = config_from({"broker": "redis", "redis": {"addr": address}, "server": server})
        broker = opened.enter_context(contextlib.closing(open_broker(config)))
        if not broker.census().dead:
            _fill(broker, options.waiting, options.dead)
        client = ApiClient(opened.enter_context(served_broker(config, broker)), ADMIN_KEY)
        _define(client)
        print(broker.census())
        print(f"{'CPU ms':>8} {'median':>6} {'commands':>9} {'reads':>6} {'kB':>6}")
        for path in requests():
            if options.only in path:
                _show(path, [_cost(client, address, path) for _ in range(TIMES)])


def _show(path: str, costs: Sequence[Cost]) -> None:
    cpu = [cost.cpu_ms for cost in costs]
    _, commands, reads, size = costs[-1]
    median = statistics.median(cpu)
    print(f"{min(cpu):8.1f} {median:6.1f} {commands:9} {reads:6} {size / 1000:6.0f}  {path}", flush=True)


def _cost(client: ApiClient, address: str, path: str) -> Cost:
    host, _, port = address.rpartition(":")
    with redis.Redis(host, int(port)) as plain:
        main_thread = plain.info("server")["process_id"]
        before, cpu_before = plain.info("stats"), _cpu_ns(main_thread)
        reply = client.send("GET", f"{API}{path}")
        spent_ns, after = _cpu_ns(main_thread) - cpu_before, plain.info("stats")
    assert reply.status == 200, (path, reply)
    names = ("total_commands_processed", "total_reads_processed")
    commands, reads = (after[name] - before[name] - 1 for name in names)
    return Cost(spent_ns / 1e6, commands, reads, len(reply.body))


def _cpu_ns(thread: int) -> int:
    return int(Path(f"/proc/{thread}/task/{thread}/schedstat").read_text().split()[0])


def _define(client: ApiClient) -> None:
    """Schedules, webhooks and keys, as an operator makes them. Repeated, it changes nothing."""
    for n in range(50):
        client.send("POST", f"{API}/keys", _json({"name": f"key {n}", "scopes": ["read"]}), _JSON)
        schedule = {"type": "report", "cron": f"{n} 3 * * *"}
        client.send("PUT", f"{API}/schedules/schedule-{n}", _json(schedule), _JSON | {"If-None-Match": "*"})
        webhook = {"name": f"hook-{n}", "url": f"https://hooks.example.com/{n}", "events": ["job.dead"]}
        client.send("POST", f"{API}/webhooks", _json(webhook), _JSON)


_JSON = {"Content-Type": "application/json"}


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _fill(broker: FullBroker, waiting: int, dead: int) -> None:
    slots = {f"slot-{n}": worker_info() for n in range(SLOTS)}
    for batch in range(2000):
        broker.create_batch(NewBatch(f"batch-{batch}", name=f"import {batch}"))
        if batch % 2:
            broker.seal_batch(f"batch-{batch}")  # it has no jobs, so it is finished
    broker.register(slots)
    others = dead // 10
    cancelled = _enqueue(broker, others, start=waiting + dead)
    for first in range(0, others, CHUNK):
        broker.cancel(cancelled[first : first + CHUNK])
    # Each part ends before the next one is enqueued.
    for count, start, settle in (
        (others, waiting + dead + others, _completed),
        (others, waiting + dead + 2 * others, _retried),
        (dead, waiting, _buried),
    ):
        _enqueue(broker, count, start=start)
        _claim_all(broker, list(slots), settle)
    _enqueue(broker, waiting, start=0)
    broker.settle_and_claim((), list(slots))
    for n in range(10_000):  # of a server with few requests: each entry is a document
        entry = AuditEntry("2026-01-01T00:00:00.000Z", "a key", "12345678", "POST /jobs", "/jobs", 1, 201, f"{n:016x}")
        AUDIT.put(broker, f"{1_700_000_000_000 + n:013d}-{n:08x}", [entry])


def _enqueue(broker: FullBroker, count: int, *, start: int) -> list[str]:
    """The ids of the new jobs."""
    ids = []
    for first in range(start, start + count, CHUNK):
        now = datetime.now(UTC)
        entries = [_entry(n, now) for n in range(first, min(first + CHUNK, start + count))]
        broker.enqueue(entries)
        ids += [entry.job.id for entry in entries]
    return ids


def _entry(n: int, now: datetime) -> Entry:
    """Every fifth job is about a file, every hundredth is a member of a batch, every third has a tag."""
    queue = QUEUES[n % len(QUEUES)]
    tags = msgspec.Raw(b'{"team":"blue"}') if n % 3 == 0 else msgspec.UNSET
    if n % 5:
        job: Job = typed_job("report" if n % 2 else "convert", {"number": n}, priority=queue, now=now)
        joins = n % 100 == 1
        return Entry(job.but(tags=tags, batch_id=f"batch-{n // 100 % 1000 * 2}" if joins else None), queue, joins=joins)
    path = f"/srv/inbox/{n % 40}/day-{n % 7}/file-{n}.csv".encode()
    job = file_job(path, size=1000, priority=queue, now=now, signature=f"1000-{n}", inode=n + 1)
    return Entry(job.but(tags=tags), queue, Version(path, f"1000-{n}"))


def _claim_all(broker: FullBroker, slots: Sequence[str], settle: Callable[[Claim, int], Settlement]) -> None:
    """Every job that waits is claimed and ends."""
    settlements: list[Settlement] = []
    numbers = itertools.count()
    while claims := broker.settle_and_claim(settlements, slots).claims:
        settlements = [settle(claim, next(numbers)) for claim in claims]


def _completed(claim: Claim, n: int) -> Settlement:
    return complete(claim, result=b'{"rows":%d}' % n, duration_ms=5)


def _retried(claim: Claim, n: int) -> Settlement:
    return failed(claim, delay_ms=86_400_000, **_failure(n))


def _buried(claim: Claim, n: int) -> Settlement:
    return burial(claim, now_ms=wall_clock_ms(), **_failure(n))


def _failure(n: int) -> dict[str, Any]:
    error = ERRORS[n % 7 % len(ERRORS)].format(n=n)
    return {"error": error, "kind": error.partition(":")[0], "traceback": TRACEBACK if n % 4 == 0 else ""}


if __name__ == "__main__":
    main()
