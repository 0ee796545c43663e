"""The vocabulary of the conformance tests: make a job, claim it, settle it, find the place it is in.

Nothing here depends on the kind of broker.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Enqueued, Entry, LedgerEntry, Record, WireEvent, WorkerInfo, WorkerView
from fileq.core.errors import Undecodable
from fileq.core.job import Claim, Job, Version, decode, encode, raw_id, rfc3339_ms
from fileq.core.settlement import Settlement, SettleResult, Verb, bury, cancel, complete, defer, release, retry
from fileq.testing.conformance.harness import Harness

CREATED = "2026-01-02T03:04:05.678Z"
EIGHT_FIELDS = ("id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id")
ENDED_PLACES = ("dead_letter", "completed", "cancelled")
ERROR = "ValueError: no such page"
KIND = "ValueError"
MakeSettlement = Callable[[Claim], Settlement]

# Bytes from other programs that are not a job, by a name for the test's id. No id can be read from any of them.
UNDECODABLE = {
    "random bytes": bytes(range(256)),
    "nothing": b"",
    "a blank": b" ",
    "text": b"hello",
    "null": b"null",
    "a number": b"17",
    "a string": b'"a"',
    "a list": b'[{"id": "a"}]',
    "an empty object": b"{}",
    "half an object": b'{"filepath": "/d/a", "files',
    "not UTF-8": b'{"filepath": "\xff\xfe"}',
    "NUL bytes": b"\0\0\0",
    "an id that is a number": b'{"id": 7, "filepath": "/d/a"}',
    "an empty id": b'{"id": "", "filepath": "/d/a"}',
}


def with_readable_id(id: str) -> dict[str, bytes]:
    """Bytes that are not a job although a careless parser finds an id in them."""
    job = json.loads(foreign(id))
    return {
        "neither a path nor a type": json.dumps({k: v for k, v in job.items() if k != "filepath"}).encode(),
        "only an id": json.dumps({"id": id}).encode(),
        "no path and null for a type": json.dumps({"id": id, "type": None}).encode(),
        "null for a path": json.dumps({"id": id, "filepath": None, "type": "t"}).encode(),
        "null for a size": json.dumps({"id": id, "filepath": "/d/a", "filesize": None}).encode(),
        "a wrong type": json.dumps({**job, "retries": "none"}).encode(),
        "a negative size": json.dumps({**job, "filesize": -1}).encode(),
        "something after it": foreign(id) + b"}",
        "cut off": foreign(id)[:-7],
        "not UTF-8": foreign(id, filepath="/d/@").replace(b"@", b"\xff"),
        "a NUL in its path": json.dumps({**job, "filepath": "/d/\0"}).encode(),
        "a list around it": b"[" + foreign(id) + b"]",
    }


# jobs


def a_job(id: str, *, priority: str = "low", **fields: Any) -> Job:
    eight = {
        "id": id,
        "filepath": f"/data/{id}.pdf",
        "filesize": 4096,
        "priority": priority,
        "retries": 0,
        "creation_time": CREATED,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
    }
    return Job(**{**eight, **fields})


def foreign(id: str, **fields: Any) -> bytes:
    """A job as another program writes it: the eight fields, other white space, perhaps more fields."""
    job = {
        "id": id,
        "filepath": f"/data/{id}.pdf",
        "filesize": 4096,
        "priority": "low",
        "retries": 0,
        "creation_time": CREATED,
        "trace_id": "",
        "span_id": "",
    }
    return json.dumps({**job, **fields}).encode()


def an_entry(id: str, *, queue: str = "low", **options: Any) -> Entry:
    return Entry(a_job(id, priority=queue), queue, **options)


def a_version(signature: str, path: bytes = b"/data/a.pdf") -> Version:
    return Version(path, signature)


def names(count: int, prefix: str = "job") -> list[str]:
    return [f"{prefix}-{i:04}" for i in range(count)]


# enqueue


def enqueue(harness: Harness, *ids: str, queue: str = "low", **options: Any) -> Enqueued:
    return harness.broker.enqueue([an_entry(id, queue=queue, **options) for id in ids])


# claims


def worker_info(**changes: Any) -> WorkerInfo:
    facts = {"host": "alpha", "pid": 4242, "started_ms": 1_700_000_000_000, "version": "1.0", "queues": ("high", "low")}
    return WorkerInfo(**{**facts, **changes})


def register(harness: Harness, *slots: str, broker: FullBroker | None = None) -> None:
    (broker or harness.broker).register(dict.fromkeys(slots, worker_info()))


def claims_of(harness: Harness, *slots: str, broker: FullBroker | None = None) -> list[Claim]:
    """Registers these slots and claims for them in one call."""
    register(harness, *slots, broker=broker)
    return list((broker or harness.broker).settle_and_claim([], slots).claims)


def claim_one(harness: Harness, slot: str = "w1", *, broker: FullBroker | None = None) -> Claim:
    claims = claims_of(harness, slot, broker=broker)
    # If another process has claimed the job, its slot is among the workers.
    assert len(claims) == 1, (claims, harness.broker.workers(), harness.broker.census())
    return claims[0]


def running(harness: Harness, id: str = "a", slot: str = "w1", *, queue: str = "low") -> Claim:
    """Enqueues a job of this id and claims it."""
    enqueue(harness, id, queue=queue)
    return claim_one(harness, slot)


def settle(harness: Harness, settlement: Settlement, *, broker: FullBroker | None = None) -> SettleResult:
    [answer] = (broker or harness.broker).settle_and_claim([settlement], []).settled
    return answer


# settlements as a worker makes them


def failed(claim: Claim, *, delay_ms: int = 1000, error: str = ERROR, kind: str = KIND, **options: Any) -> Settlement:
    assert claim.job is not None
    again = encode(claim.job.but(retries=claim.job.retries + 1))
    return retry(claim, again, delay_ms=delay_ms, error=error, kind=kind, **options)


def burial(
    claim: Claim, *, error: str = ERROR, kind: str = KIND, now_ms: int = 1_700_000_000_000, **options: Any
) -> Settlement:
    """Buries a claim: a job gets the error as a field, other bytes stay as they are."""
    raw = claim.raw
    if claim.job is not None:
        raw = encode(claim.job.but(error=error, failed_at=rfc3339_ms(now_ms)))
    return bury(claim, raw, error=error, kind=kind, **options)


def recovered(claim: Claim) -> Settlement:
    """Releases a claim as a reaper does after the first death of a worker: to the front, one recovery counted."""
    raw = claim.raw
    if claim.job is not None:
        raw = encode(claim.job.but(recoveries=claim.job.recoveries + 1))
    return release(claim, raw, error="worker died", died=True)


def deferred(claim: Claim, *, delay_ms: int = 1000, reason: str = "the root /data is missing") -> Settlement:
    return defer(claim, reason=reason, delay_ms=delay_ms)


# One of each verb, for the rules that hold for all of them.
EVERY_SETTLEMENT: dict[Verb, MakeSettlement] = {
    Verb.COMPLETE: complete,
    Verb.RETRY: failed,
    Verb.BURY: burial,
    Verb.RELEASE: release,
    Verb.CANCEL: cancel,
    Verb.DEFER: deferred,
}

# Where each verb puts a job that came from the low queue.
DESTINATION = {
    Verb.COMPLETE: "completed",
    Verb.RETRY: "scheduled",
    Verb.BURY: "dead_letter",
    Verb.RELEASE: "low",
    Verb.CANCEL: "cancelled",
    Verb.DEFER: "scheduled",
}


# ended jobs and expired leases


def dead(harness: Harness, id: str = "a", *, queue: str = "low") -> bytes:
    """Makes a job of this id that is in the dead-letter list; returns its bytes there."""
    settlement = burial(running(harness, id, queue=queue))
    assert settle(harness, settlement) is SettleResult.DONE
    return settlement.next_raw


def completed(harness: Harness, *ids: str) -> None:
    for id in ids:
        assert settle(harness, complete(running(harness, id))) is SettleResult.DONE


def expire_leases(harness: Harness) -> None:
    harness.advance(harness.config.worker.heartbeat_ttl)


def reap_all(harness: Harness, *, broker: FullBroker | None = None) -> list[SettleResult]:
    """Reaps every suspect; each job goes back to the front of its queue."""
    broker = broker or harness.broker
    answers: list[SettleResult] = []
    for suspect in broker.suspects(sweep=True):
        answers += broker.reap(suspect.slot, [recovered(claim) for claim in suspect.claims])
    return answers


# what is where


def raws_in(harness: Harness, place: str) -> list[bytes]:
    """The bytes of all jobs in a place, oldest (next out) first."""
    return [raw for page in harness.broker.pages(place) for raw in page]


def ids_in(harness: Harness, place: str) -> list[str]:
    return [id_of(raw) for raw in raws_in(harness, place)]


def id_of(raw: bytes) -> str:
    try:
        return decode(raw).id
    except Undecodable:
        return raw_id(raw)


def places(harness: Harness) -> Iterator[tuple[str, bytes]]:
    """(place, raw) of every job in the broker; what a slot holds is in `processing:<slot>`."""
    for place in (*harness.config.worker.priorities, "scheduled", *ENDED_PLACES):
        for raw in raws_in(harness, place):
            yield place, raw
    held = {view.slot: [view.raw] for view in harness.broker.workers() if view.raw}
    for suspect in harness.broker.suspects(sweep=True):
        held[suspect.slot] = [claim.raw for claim in suspect.claims]
    for slot, raws in sorted(held.items()):
        for raw in raws:
            yield f"processing:{slot}", raw


def places_of(harness: Harness, id: str) -> list[str]:
    """Every place that has a job of this id; a job without copies is in exactly one."""
    return [place for place, raw in places(harness) if id_of(raw) == id]


def job_of(claim: Claim) -> Job:
    assert claim.job is not None, claim.defect
    return claim.job


def ledger_entry(harness: Harness, path: bytes) -> LedgerEntry:
    [entry] = harness.broker.lookup([path])
    assert entry is not None, f"the ledger has no entry for {path!r}"
    return entry


def record_of(harness: Harness, id: str) -> Record:
    [record] = harness.broker.records([id])
    assert record is not None, f"{id} has no record"
    return record


def has_record(harness: Harness, id: str) -> bool:
    return harness.broker.records([id]) != [None]


def drift(harness: Harness) -> int:
    return harness.broker.census().drift


def counter(harness: Harness, name: str) -> int:
    return harness.broker.census().counters.get(name, 0)


def raw_held_by(harness: Harness, slot: str) -> bytes:
    """The bytes of the job that this slot holds."""
    [raw] = [view.raw for view in harness.broker.workers() if view.slot == slot]
    return raw


def snapshot(harness: Harness, *ids: str) -> Any:
    """Everything visible but the counter of fenced calls: if two are equal, nothing changed between them."""
    census = harness.broker.census()
    counters = {name: n for name, n in census.counters.items() if n and name != "fenced"}
    return (
        list(places(harness)),
        msgspec.structs.replace(census, counters=counters, now_ms=0),
        harness.broker.records(ids),
        [(view.slot, view.info, view.is_alive) for view in harness.broker.workers()],
    )


def without_left_ms(views: Iterable[WorkerView]) -> list[WorkerView]:
    """Without what changes from one moment to the next on the clock of a server."""
    return [msgspec.structs.replace(view, left_ms=0) for view in views]


# events


@contextmanager
def subscribed(harness: Harness) -> Iterator[Any]:
    """Yields `next_events(n)`, which returns the next n events without their time, and fails if one is missing."""
    subscription = harness.broker.subscribe()

    def next_events(count: int) -> list[WireEvent]:
        found: list[WireEvent] = []
        for _ in range(count):
            event = subscription.get(10.0)
            assert event is not None, f"{count} events were expected, received {found}"
            found.append(msgspec.structs.replace(msgspec.json.decode(event, type=WireEvent), at=0))
        return found

    try:
        yield next_events
    finally:
        subscription.close()
