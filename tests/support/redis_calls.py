"""Every call that changes something on Redis, with a scene for it: for tests that break calls in a uniform way."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from fileq.brokers.redis import RedisBroker
from fileq.brokers.types import AdmitRequest, LedgerEntry, Record, Revival, Revived, TurnReply, UnrecordedJob
from fileq.core.job import Claim, State, Version, decode, encode, raw_id
from fileq.core.settlement import cancel, complete, release, retry
from fileq.testing.conformance.builders import an_entry, burial, deferred, enqueue, failed, foreign, recovered, register
from fileq.testing.conformance.harness import START_MS
from tests.support.broker_calls import BrokerCall, Invocation
from tests.support.redis_batch_calls import BATCH_CALLS
from tests.support.redis_job_calls import JOB_CALLS
from tests.support.redis_store import GARBAGE, Store, claimed

ORDER = b"complete 1-2\n/data/a"


def _settling(make: Callable[[Claim], Any]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        settlements = [make(claim) for claim in claimed(store, "w1", "w2")]
        return lambda broker: list(broker.settle_and_claim(settlements, []).settled)

    return prepare


def _done_already(answer: list[Any]) -> list[str]:
    return ["done already"] * len(answer)


def _fenced(answer: Any) -> Any:
    return ("fenced",) * len(answer)


def _enqueue(store: Store) -> Invocation:
    # A rate-limit window that outlives the test: its end would depend on the server's clock.
    store.client.set("jobqueue:rate_limit:producer", 3, ex=600)
    entries = [
        an_entry("a", version=Version(b"/data/a", "s1")),
        an_entry("b", queue="high"),
        an_entry("c", delay_ms=60_000),
        an_entry("d", version=Version(b"/data/a", "s2"), always=True),
    ]
    return lambda broker: list(broker.enqueue(entries, limit=10).results)


def _enqueue_one(store: Store) -> Invocation:
    return lambda broker: list(broker.enqueue([an_entry("a")]).results)


def _claim(store: Store) -> Invocation:
    enqueue(store, "a", queue="high")
    store.client.lpush("jobqueue:low_priority", foreign("b"), GARBAGE)
    register(store, "w1", "w2", "w3")
    return lambda broker: [(c.slot, c.raw) for c in broker.settle_and_claim([], ["w1", "w2", "w3"]).claims]


def _settle_and_claim(store: Store) -> Invocation:
    claims = claimed(store, "w1", "w2", "w3", "w4", "w5", "w6")
    enqueue(store, "x1", "x2", "x3")
    settlements = [make(claim) for make, claim in zip(SETTLEMENTS, claims, strict=True)]

    def call(broker: RedisBroker) -> Any:
        turn: TurnReply = broker.settle_and_claim(settlements, [claim.slot for claim in claims])
        return list(turn.settled), [(c.slot, c.raw) for c in turn.claims]

    return call


def _admit(store: Store) -> Invocation:
    """A job that was admitted and has ended, one that runs, and a third; a window that outlives the test."""
    limits = {"max_running_total": 2, "rate": 50, "window_ms": 3_600_000}
    ended, first, second, third = claimed(store, "w1", "w2", "w3", "w4")
    requests = [AdmitRequest("mail", claim.slot, claim.raw, **limits) for claim in (ended, first, second, third)]
    assert store.broker.admit(requests[:2])
    assert list(store.broker.settle_and_claim([complete(ended)], []).settled) == ["done"]
    return lambda broker: [answer.result for answer in broker.admit(requests)]


def _renew(store: Store) -> Invocation:
    held, wanted, unexpected = claimed(store, "w1", "w2", "w3")
    register(store, "w4")
    store.broker.cancel([wanted.id])
    believed = [("w1", held.raw), ("w2", wanted.raw), ("w3", b""), ("w4", b""), ("w5", b"")]
    assert unexpected.slot == "w3"
    return lambda broker: [(r.slot, r.status, r.claim and r.claim.raw) for r in broker.renew(believed)]


def _promote(store: Store) -> Invocation:
    enqueue(store, "a", "b", delay_ms=5_000)
    enqueue(store, "c", delay_ms=60_000, queue="high")
    store.client.zadd("jobqueue:scheduled", {GARBAGE: 1})
    store.advance(10)
    return lambda broker: broker.promote().count


def _realign(store: Store) -> Invocation:
    enqueue(store, "a", "b", delay_ms=5_000)
    enqueue(store, "c", delay_ms=60_000, queue="high")
    store.client.zadd("jobqueue:scheduled", {GARBAGE: 1})
    for id in ("a", "b"):  # scheduled when the clock was ahead by an hour
        for field in ("due", "since"):
            store.client.hincrby(f"jobqueue:job:{id}", field, 3_600_000)
    return lambda broker: broker.realign(0, 3)


def _reaping(make: Callable[[Claim], Any]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        [claim] = claimed(store, "w1")
        store.client.delete("jobqueue:processing:worker:w1")
        return lambda broker: broker.reap("w1", [make(claim)])

    return prepare


def _register(store: Store) -> Invocation:
    register(store, "w1")
    return lambda broker: register(store, "w1", "w2", broker=broker)


def _deregister(store: Store) -> Invocation:
    claimed(store, "w1", "w2")
    store.client.lpush("jobqueue:worker:w2:processing", GARBAGE)
    return lambda broker: broker.deregister(["w1", "w2", "w3"])


def _cancel_by_id(store: Store) -> Invocation:
    claimed(store, "w1", ids=("running",))
    enqueue(store, "waiting")
    enqueue(store, "later", delay_ms=60_000)
    return lambda broker: broker.cancel(["running", "waiting", "later", "unknown"])


def buried(store: Store) -> list[tuple[str, bytes]]:
    """(id, raw) of a dead job and of dead bytes that are no job."""
    enqueue(store, "a")
    store.client.lpush("jobqueue:low_priority", GARBAGE)
    register(store, "w1", "w2")
    settlements = [burial(claim) for claim in store.broker.settle_and_claim([], ["w1", "w2"]).claims]
    settlements[0] = replace(settlements[0], order=ORDER)
    assert list(store.broker.settle_and_claim(settlements, []).settled) == ["done"] * 2
    return [("a", settlements[0].next_raw), (raw_id(GARBAGE), GARBAGE)]


def _due_now(store: Store) -> Invocation:
    settlement = deferred(claimed(store, "w1", ids=("deferred",))[0])
    assert list(store.broker.settle_and_claim([settlement], []).settled) == ["done"]
    enqueue(store, "later", delay_ms=60_000)
    return lambda broker: broker.due_now(["deferred", "later", "unknown"])


def _finish_orders(store: Store) -> Invocation:
    (id, _), _ = buried(store)
    return lambda broker: broker.finish_orders([(id, b"/failed/a"), ("unknown", b"/failed/b")])


def _revive(store: Store) -> Invocation:
    (id, raw), (garbage_id, garbage) = buried(store)
    again = encode(decode(raw).but(error=None, failed_at=None))
    revivals = [Revival(raw, id, again, "low"), Revival(garbage, garbage_id, garbage, "high")]
    return lambda broker: broker.revive(revivals)


def _discard(store: Store) -> Invocation:
    raws_in = buried(store)
    return lambda broker: broker.discard(raws_in)


def _update_ledger(store: Store) -> Invocation:
    for n, path in enumerate((b"/data/a", b"/data/b")):
        enqueue(store, f"job{n}", version=Version(path, "s1"))
    was = {path: entry for path, entry in store.broker.ledger(b"/data") if entry}
    missing = LedgerEntry((("s1", "job0"),), missing_since_ms=START_MS, device="8:1")
    changes = [(b"/data/a", was[b"/data/a"], missing), (b"/data/b", was[b"/data/b"], None)]
    return lambda broker: broker.update_ledger(changes)


def _pause(store: Store) -> Invocation:
    return lambda broker: broker.pause("low")


def _resume(store: Store) -> Invocation:
    store.broker.pause("low")
    return lambda broker: broker.resume("low")


def _restore(store: Store) -> Invocation:
    """A lost job of each state, and one that is in its place."""
    claimed(store, "w1", ids=("running",))
    enqueue(store, "waiting", "there")
    enqueue(store, "later", delay_ms=60_000)
    buried(store)
    store.client.delete("jobqueue:worker:w1:processing", "jobqueue:scheduled", "jobqueue:dead_letter")
    assert store.client.rpop("jobqueue:low_priority")
    ids = ["running", "waiting", "there", "later", "a", "unknown"]
    return lambda broker: broker.restore(ids)


def _create_record(store: Store) -> Invocation:
    enqueue(store, "waiting", "there")
    enqueue(store, "later", delay_ms=60_000)
    raws = {id: store.client.hget(f"jobqueue:job:{id}", "json") for id in ("waiting", "there", "later")}
    store.client.delete("jobqueue:job:waiting", "jobqueue:job:later")
    places = {"waiting": "low", "there": "low", "later": "scheduled"}
    unrecorded = [UnrecordedJob(places[id], Record(id, State.PENDING, raw, "low")) for id, raw in raws.items()]
    return lambda broker: broker.create_record(unrecorded)


def _balance(store: Store) -> Invocation:
    claimed(store, "w1")
    store.client.hincrby("jobqueue:stats", "produced", 2)
    return lambda broker: broker.balance(2)


def leaving(claim: Claim) -> Any:
    """A completion with a result, a version of its file for the ledger, and an order."""
    done = complete(claim, result=b'{"pages":3}', duration_ms=12, leaves=Version(b"/data/a", "s9"))
    return replace(done, order=ORDER)


SETTLEMENTS = (leaving, failed, burial, release, cancel, deferred)

CALLS = (
    BrokerCall("enqueue", _enqueue),
    BrokerCall("enqueue one", _enqueue_one),
    BrokerCall("claim", _claim),
    BrokerCall("complete", _settling(leaving), _done_already),
    BrokerCall("retry", _settling(failed), _done_already),
    BrokerCall("bury", _settling(burial), _done_already),
    BrokerCall("release", _settling(release), _done_already),
    BrokerCall("cancel", _settling(cancel), _done_already),
    BrokerCall("defer", _settling(deferred), _done_already),
    BrokerCall("settle_and_claim", _settle_and_claim, lambda answer: (_done_already(answer[0]), answer[1])),
    BrokerCall("admit", _admit),
    BrokerCall("renew", _renew),
    BrokerCall("promote", _promote, lambda answer: 0),
    BrokerCall("realign", _realign, lambda answer: 3),
    BrokerCall("due_now", _due_now, lambda answer: [False] * len(answer)),
    BrokerCall("finish_orders", _finish_orders),
    BrokerCall("reap", _reaping(recovered), _fenced),
    BrokerCall("reap by retry", _reaping(lambda c: retry(c, c.raw, delay_ms=500, error="died", died=True)), _fenced),
    BrokerCall("reap by bury", _reaping(lambda c: replace(burial(c, died=True), order=ORDER)), _fenced),
    BrokerCall("register", _register),
    BrokerCall("deregister", _deregister),
    BrokerCall("cancel by id", _cancel_by_id, lambda answer: ["requested_before", "ended", "ended", "unknown"]),
    BrokerCall("revive", _revive, lambda answer: [Revived(False)] * 2),
    BrokerCall("discard", _discard, lambda answer: [False] * len(answer)),
    BrokerCall("update_ledger", _update_ledger, lambda answer: [False, False]),
    BrokerCall("pause", _pause),
    BrokerCall("resume", _resume),
    BrokerCall("restore", _restore, lambda answer: [False] * len(answer)),
    BrokerCall("create_record", _create_record, lambda answer: [False] * len(answer)),
    BrokerCall("balance", _balance, lambda answer: False),
    *JOB_CALLS,
    *BATCH_CALLS,
)
