"""One scenario that uses every method of a Redis broker: for tests of connections, permissions and key layout."""

import contextlib
import json
from typing import Any

from fileq.brokers.batches import NewBatch
from fileq.brokers.redis import RedisBroker
from fileq.brokers.redis.layout import Keys
from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import AdmitRequest, Entry, LedgerEntry, Revival, Revived
from fileq.core.batch import CallbackKind
from fileq.core.job import Version, decode, encode
from fileq.core.outcome import FollowUp
from fileq.core.settlement import cancel, complete, release
from fileq.testing.conformance.batch_builders import callback, member
from fileq.testing.conformance.builders import (
    a_job,
    an_entry,
    burial,
    deferred,
    failed,
    foreign,
    recovered,
    worker_info,
)
from fileq.testing.conformance.producers_tests import producer_info
from tests.support.redis_calls import leaving
from tests.support.redis_job_calls import followed, keyed
from tests.support.redis_store import config_on
from tests.support.waiting import wait_until

ALL_EVENTS = {
    *("job:created", "job:started", "job:completed", "job:failed", "job:dead", "job:recovered", "job:cancelled"),
    *("job:deferred", "batch:finished"),
}
DEFAULT_KEYS = Keys(config_on())


def use_every_method(broker: RedisBroker, client: Any, keys: Keys = DEFAULT_KEYS, *, has_events: bool = True) -> None:
    """Call every method of the broker at least once; the counters balance at the end.

    `client` pushes jobs as another program does, and deletes a heartbeat. `keys` are those of the broker."""
    with contextlib.ExitStack() as stack:
        waiter = stack.enter_context(contextlib.closing(broker.waiter()))
        subscription = stack.enter_context(contextlib.closing(broker.subscribe())) if has_events else None
        broker.register(dict.fromkeys(("w1", "w2"), worker_info()))
        waiter.arm()
        _enqueue_and_settle(broker, waiter)
        _fail_and_reap(broker, client, keys)
        _inspect_and_repair(broker)
        _cancel_and_deregister(broker, client, keys)
        _make_jobs(broker)
        _count_together(broker)
        census = broker.census()
        assert census.drift == 0, census
        if subscription is not None:
            events = {json.loads(event)["event"] for event in iter(lambda: subscription.get(0.05), None)}
            assert events == ALL_EVENTS


def _enqueue_and_settle(broker: RedisBroker, waiter: Any) -> None:
    """Enqueue, wait, claim, renew, complete, retry and defer; the ledger and the rate limit each turn an entry away."""
    version = Version(b"/data/a", "s1-i7")
    entries = [
        an_entry("a", version=version),
        an_entry("b", queue="high"),
        an_entry("c", delay_ms=1),
        an_entry("d", version=version),
        an_entry("d", version=Version(b"/data/d", "s1")),
    ]
    expected = ["enqueued", "enqueued", "enqueued", "known", "throttled"]
    assert list(broker.enqueue(entries, limit=1).results) == expected
    assert waiter.wait(10)
    first, second = broker.settle_and_claim([], ["w1", "w2"]).claims
    assert (first.id, second.id) == ("b", "a")
    requests = [AdmitRequest("mail", claim.slot, claim.raw, max_running_total=1, rate=2) for claim in (first, second)]
    assert [answer.result for answer in broker.admit(requests)] == ["admitted", "full"]
    assert [r.status for r in broker.renew([("w1", first.raw), ("w2", b"")])] == ["held", "unexpected"]
    reply = broker.settle_and_claim([leaving(first), failed(second, delay_ms=1)], ["w1"])
    assert list(reply.settled) == ["done", "done"]
    wait_until(lambda: broker.promote().next_due_ms is None, what="all due jobs are promoted")
    [claim] = broker.settle_and_claim([], ["w1"]).claims
    assert list(broker.settle_and_claim([deferred(claim, delay_ms=60_000)], []).settled) == ["done"]
    assert broker.due_now([claim.id]) == [True]


def _fail_and_reap(broker: RedisBroker, client: Any, keys: Keys) -> None:
    """Bury, release, revive, pause, resume, discard and reap; adopt a job that another program pushed."""
    claims = {claim.id: claim for claim in broker.settle_and_claim([], ["w1", "w2"]).claims}
    dead, released = burial(claims["a"]), release(claims["c"])
    assert list(broker.settle_and_claim([dead, released], []).settled) == ["done", "done"]
    again = encode(decode(dead.next_raw).but(error=None, failed_at=None))
    assert broker.revive([Revival(dead.next_raw, "a", again, "low")]) == [Revived(True)]
    client.lpush(keys.queues[1], foreign("other"))
    broker.pause("high")
    claims = {claim.id: claim for claim in broker.settle_and_claim([], ["w1", "w2"]).claims}
    broker.resume("high")
    dead = burial(claims["a"])
    assert list(broker.settle_and_claim([dead], []).settled) == ["done"]
    assert broker.discard([("a", dead.next_raw)]) == [True]
    client.delete(keys.heartbeat(claims["c"].slot))
    [suspect] = broker.suspects(sweep=True)
    assert list(broker.reap(suspect.slot, [recovered(claim) for claim in suspect.claims])) == ["done"]


def _inspect_and_repair(broker: RedisBroker) -> None:
    assert len(broker.workers()) == 1
    assert [record is not None for record in broker.records(["a", "b", "c"])] == [False, True, True]
    for place in ("high", "low", "scheduled", "completed", "dead_letter", "cancelled"):
        assert broker.peek(place, 5) == [raw for page in broker.pages(place) for raw in page]
    [entry] = broker.lookup([b"/data/a"])
    assert entry is not None
    assert dict(broker.ledger(b"/data")) == {b"/data/a": entry}
    assert broker.update_ledger([(b"/data/a", entry, LedgerEntry((("s2", "x"),)))]) == [True]
    broker.reset_breaker("mail")
    assert broker.breaker_resets() == {"mail": 1}
    broker.report_producer("p1", producer_info(), 1)
    wait_until(lambda: not broker.producers(), what="the lease has ended")
    broker.report_producer("p2", producer_info(), 60_000)
    assert [view.id for view in broker.producers()] == ["p2"]
    broker.remove_producer("p2")
    assert [order.id for order in broker.orders(-1)] == ["b"]
    assert broker.finish_orders([("b", b"/done/b")]) == [True]
    assert broker.hourly(2)
    assert len(broker.overview().workers) == 1
    ids = [id for page in broker.ids() for id in page]
    assert {"b", "c"} <= set(ids)
    assert broker.lost(ids) == broker.restore(ids) == [False] * len(ids)
    drift = broker.census().drift
    assert broker.balance(drift, drift) is True


def _cancel_and_deregister(broker: RedisBroker, client: Any, keys: Keys) -> None:
    """Cancel a waiting and a running job; deregister a slot that holds a job, which the next slot gets."""
    [slot] = [view.slot for view in broker.workers()]
    broker.enqueue([an_entry("e"), an_entry("f", delay_ms=60_000)])
    ids = [claim.id for claim in broker.settle_and_claim([], [slot]).claims]
    assert [str(word) for word in broker.cancel([*ids, "f"])] == ["requested", "cancelled"]
    [claim] = broker.settle_and_claim([], [slot]).claims
    assert list(broker.settle_and_claim([cancel(claim)], [slot]).settled) == ["done"]
    broker.deregister([slot])
    assert broker.census().running == 0
    broker.register({"w9": worker_info()})
    for _ in range(2):
        for claim in broker.settle_and_claim([], ["w9"]).claims:
            broker.settle_and_claim([complete(claim)], [])
    client.lpush(keys.queues[0], foreign("last"))
    [claim] = broker.settle_and_claim([], ["w9"]).claims
    assert list(broker.settle_and_claim([complete(claim)], []).settled) == ["done"]
    broker.deregister(["w9"])


def _make_jobs(broker: RedisBroker) -> None:
    """Follow-ups, outputs, unique keys, schedules and documents; what waits at the end is cleared."""
    broker.register({"w9": worker_info()})
    assert list(broker.enqueue([keyed("u1"), keyed("u2")]).existing) == ["", "u1"]
    [claim] = broker.settle_and_claim([], ["w9"]).claims
    assert list(broker.settle_and_claim([followed(complete)(claim)], []).settled) == ["done"]
    assert broker.makers([b"/out/a"]) == ["u1"]
    assert broker.sweep_unique() is None
    assert broker.put_document("webhooks", "a", b"{}", 0) == broker.catalog_revision("webhooks") == 1
    assert list(broker.documents("webhooks")) == ["a"]
    assert broker.remove_document("webhooks", "a") is True
    broker.define_schedule("nightly", "r1", 1000)
    for slot in (1000, 2000):
        entry = FollowUp(a_job(f"sched.{slot}"), "low", is_own=True)
        assert broker.fire(Fire("nightly", "r1", slot, slot + 1000, entry, overlap=Overlap.CANCEL)) is FireResult.FIRED
    assert broker.promote().next_fire_ms == 3000
    assert broker.pause_schedule("nightly")
    assert broker.resume_schedule("nightly", 4000)
    assert list(broker.schedules()) == ["nightly"]
    assert broker.remove_schedule("nightly")
    assert broker.clear("low", broker.peek("low", 500)) == [True] * 3
    broker.enqueue([Entry(a_job("late", deadline="2020-01-01T00:00:00Z"), "low")])
    [late] = broker.overdue()
    buried = burial(late)
    assert broker.bury_overdue([buried]) == ("done",)
    assert broker.discard([("late", buried.next_raw)]) == [True]
    assert [str(word) for word in broker.cancel(["u1.1"])] == ["cancelled"]
    broker.deregister(["w9"])


def _count_together(broker: RedisBroker) -> None:
    """Batches: a child that finishes, a job that joins, a death, a revival, a cancellation."""
    broker.register({"w9": worker_info()})
    assert broker.create_batch(NewBatch("p", callbacks=(callback("p", CallbackKind.FINALLY),)))
    assert broker.create_batch(NewBatch("b", parent="p", callbacks=(callback("b", CallbackKind.CATCH, "p"),)))
    assert list(broker.enqueue([member("m1"), member("m2", joins=False)]).results) == ["enqueued"] * 2
    assert broker.join_batch("b", ["m2", "unknown"]) == ["joined", "joined"]
    assert broker.seal_batch("b")
    [claim] = broker.settle_and_claim([], ["w9"]).claims
    dead = burial(claim)
    assert list(broker.settle_and_claim([dead], []).settled) == ["done"]
    assert broker.dead_members("b").ids == ("m1",)
    again = encode(decode(dead.next_raw).but(error=None, failed_at=None))
    assert broker.revive([Revival(dead.next_raw, "m1", again, "low")]) == [Revived(True)]
    assert broker.count_members("b", list(broker.unfinished_members("b").ids)) == 0
    assert len(broker.batch_page().batches) == len(broker.batch_page(unfinished=True).batches) == 2
    assert broker.cancel_batch("p")
    assert set(broker.cancel(["m1", "m2", "b.catch"])) == {"cancelled"}
    assert [view and view.state for view in broker.batches_by_id(["b", "p"])] == ["finished", "finished"]
    assert set(broker.cancel(["p.finally"])) == {"cancelled"}
    broker.deregister(["w9"])
