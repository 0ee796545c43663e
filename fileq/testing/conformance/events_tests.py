"""Events: one for each transition, in the order of the transitions; none for a call that changed nothing."""

import json

import msgspec

from fileq.brokers.types import Entry, WireEvent
from fileq.core.job import encode
from fileq.core.settlement import cancel, complete, release, retry
from fileq.testing.conformance.builders import (
    ERROR,
    a_job,
    an_entry,
    burial,
    claim_one,
    deferred,
    enqueue,
    expire_leases,
    failed,
    foreign,
    job_of,
    names,
    reap_all,
    running,
    settle,
    subscribed,
)
from fileq.testing.conformance.harness import Harness


def test_every_transition_of_a_job_is_an_event(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        enqueue(harness, "a", queue="high")
        settle(harness, failed(claim_one(harness), delay_ms=0, duration_ms=120))
        harness.broker.promote()
        settle(harness, complete(claim_one(harness), duration_ms=80))
        assert next_events(5) == [
            WireEvent("job:created", "a", None, "high", "", 0, "", 0, "/data/a.pdf"),
            WireEvent("job:started", "a", None, "high", "w1", 0, "", 0, "/data/a.pdf"),
            WireEvent("job:failed", "a", None, "high", "w1", 120, ERROR, 1, "/data/a.pdf"),
            WireEvent("job:started", "a", None, "high", "w1", 0, "", 1, "/data/a.pdf"),
            WireEvent("job:completed", "a", None, "high", "w1", 80, "", 1, "/data/a.pdf"),
        ]


def test_an_event_is_one_json_object_with_these_fields_in_order(harness: Harness) -> None:
    subscription = harness.broker.subscribe()
    try:
        enqueue(harness, "a")
        claim_one(harness)
        for _ in range(2):
            assert list(json.loads(subscription.get(10) or b"")) == [
                *("event", "job_id", "type", "priority", "worker_id", "duration_ms", "error", "retry_count"),
                *("filepath", "at"),
            ]
    finally:
        subscription.close()


def test_every_broker_publishes_the_same_bytes(harness: Harness) -> None:
    """But for the time, which is the broker's. Some paths need escaping, or are not ASCII."""
    subscription = harness.broker.subscribe()
    try:
        for id, path in (("a", "/data/a.pdf"), ("b", '/data/quote" back\\slash\n.pdf'), ("c", "/data/ünï.pdf")):
            harness.broker.enqueue([Entry(a_job(id, filepath=path), "low")])
            settle(harness, complete(claim_one(harness), duration_ms=7))
            for name, slot, ms in (("created", "", 0), ("started", "w1", 0), ("completed", "w1", 7)):
                received = subscription.get(10) or b""
                expected = msgspec.json.encode(WireEvent(f"job:{name}", id, None, "low", slot, ms, "", 0, path))
                assert received[: len(expected) - 2] == expected[:-2]
                assert abs(json.loads(received)["at"] - harness.clock.ms) < 60_000
    finally:
        subscription.close()


def test_a_burial_is_an_event(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        settle(harness, burial(running(harness, "a")))
        assert next_events(3)[-1] == WireEvent("job:dead", "a", None, "low", "w1", 0, ERROR, 1, "/data/a.pdf")


def test_a_burial_of_bytes_that_are_not_a_job_is_an_event(harness: Harness) -> None:
    harness.push_raw("low", b"hello")
    with subscribed(harness) as next_events:
        claim = claim_one(harness)
        settle(harness, burial(claim, error="not a job"))
        assert next_events(1) == [WireEvent("job:dead", claim.id, None, "low", "w1", 0, "not a job", 0)]


def test_cancelling_is_an_event_where_the_job_waits_and_where_it_runs(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        running_claim = running(harness, "a")
        enqueue(harness, "b")
        next_events(3)
        harness.broker.cancel(["a", "b", "unknown"])
        settle(harness, cancel(running_claim, duration_ms=5))
        assert next_events(2) == [
            WireEvent("job:cancelled", "b", None, "low", "", 0, "cancelled", 0, "/data/b.pdf"),
            WireEvent("job:cancelled", "a", None, "low", "w1", 5, "cancelled", 0, "/data/a.pdf"),
        ]


def test_a_deferral_is_an_event_whose_error_is_the_reason(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        settle(harness, deferred(running(harness, "a"), reason="no root"))
        assert next_events(3)[-1] == WireEvent("job:deferred", "a", None, "low", "w1", 0, "no root", 0, "/data/a.pdf")


def test_a_recovery_is_an_event(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    with subscribed(harness) as next_events:
        reap_all(harness)
        assert next_events(1) == [
            WireEvent("job:recovered", "a", None, "low", "w1", 0, "worker died", 0, "/data/a.pdf")
        ]


def test_a_recovery_with_a_backoff_is_the_same_event(harness: Harness) -> None:
    claim = running(harness, "a")
    with subscribed(harness) as next_events:
        settle(harness, retry(claim, encode(job_of(claim).but(recoveries=1)), delay_ms=5, error="killed", died=True))
        assert next_events(1) == [WireEvent("job:recovered", "a", None, "low", "w1", 0, "killed", 0, "/data/a.pdf")]


def test_an_event_names_the_type_of_the_job(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        harness.broker.enqueue([Entry(a_job("a", type="resize", filepath=""), "low")])
        settle(harness, complete(claim_one(harness)))
        assert [(event.event, event.type) for event in next_events(3)] == [
            ("job:created", "resize"),
            ("job:started", "resize"),
            ("job:completed", "resize"),
        ]


def test_a_foreign_job_starts_like_our_own(harness: Harness) -> None:
    """Fields in another order, and an id that needs escaping."""
    id = 'quote" back\\slash ünï'
    job = json.loads(foreign(id, type="a/b", retries=2))
    harness.push_raw("high", json.dumps(dict(reversed(job.items()))).encode())
    with subscribed(harness) as next_events:
        claim_one(harness)
        assert next_events(1) == [WireEvent("job:started", id, "a/b", "high", "w1", 0, "", 2, f"/data/{id}.pdf")]


def test_a_call_that_changed_nothing_is_no_event(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        claim = running(harness, "a")
        next_events(2)
        enqueue(harness, "a")
        settle(harness, release(claim))
        settle(harness, release(claim))
        harness.broker.promote()
        again = claim_one(harness)
        claim_one(harness)
        harness.broker.deregister(["w1"])
        settle(harness, complete(again))
        harness.broker.cancel(["unknown"])
        enqueue(harness, "last")
        assert [(event.event, event.job_id) for event in next_events(2)] == [
            ("job:started", "a"),
            ("job:created", "last"),
        ]


def test_events_of_a_batch_keep_its_order(harness: Harness) -> None:
    with subscribed(harness) as next_events:
        harness.broker.enqueue([an_entry(id) for id in names(1000)])
        assert [event.job_id for event in next_events(1000)] == names(1000)


def test_every_subscriber_gets_the_events_of_every_client(harness: Harness) -> None:
    other = harness.another()
    with subscribed(harness) as first, subscribed(harness) as second:
        other.enqueue([an_entry("a")])
        assert [event.job_id for event in first(1)] == [event.job_id for event in second(1)] == ["a"]


def test_a_subscriber_gets_no_earlier_events(harness: Harness) -> None:
    enqueue(harness, "before")
    with subscribed(harness) as next_events:
        enqueue(harness, "after")
        assert [event.job_id for event in next_events(1)] == ["after"]


def test_without_an_event_get_returns_none(harness: Harness) -> None:
    subscription = harness.broker.subscribe()
    assert subscription.get(0) is None
    subscription.close()


def test_a_closed_subscription_does_not_disturb_others(harness: Harness) -> None:
    subscription = harness.broker.subscribe()
    subscription.close()
    enqueue(harness, "a")
    with subscribed(harness) as next_events:
        enqueue(harness, "b")
        assert [event.job_id for event in next_events(1)] == ["b"]
