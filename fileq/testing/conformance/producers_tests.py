"""report_producer, remove_producer and producers: which producers are alive, and what they reported last."""

from typing import Any

from fileq.brokers.types import ProducerInfo, ScanInfo
from fileq.testing.conformance.builders import enqueue, names, snapshot
from fileq.testing.conformance.harness import Harness

TTL_MS = 30_000


def producer_info(**changes: Any) -> ProducerInfo:
    facts = {"host": "alpha", "pid": 4242, "started_ms": 1_700_000_000_000, "version": "1.0", "roots": ("/data/in",)}
    return ProducerInfo(**{**facts, **changes})


def report(harness: Harness, *ids: str, ttl_ms: int = TTL_MS, **changes: Any) -> None:
    for id in ids:
        harness.broker.report_producer(id, producer_info(**changes), ttl_ms)


def alive(harness: Harness) -> list[str]:
    return [view.id for view in harness.broker.producers()]


def test_there_are_no_producers_at_first(harness: Harness) -> None:
    assert harness.broker.producers() == []
    assert harness.broker.overview().producers == ()


def test_a_report_is_read_as_it_was_written(harness: Harness) -> None:
    info = producer_info(
        roots=("/data/\\xff in", "/b"),
        state="held",
        problem='a "problem"\n',
        held_by="producer.rate_limit_per_sec",
        held_since_ms=17,
        last_scan=ScanInfo(began_ms=1, ended_ms=2, found=3, is_complete=False),
        enqueued=4,
        waiting=5,
    )
    harness.broker.report_producer("p1", info, TTL_MS)
    [view] = harness.another().producers()
    assert (view.id, view.info) == ("p1", info)
    assert harness.broker.overview().producers == (view,)


def test_the_last_report_counts_and_a_repeat_changes_nothing(harness: Harness) -> None:
    report(harness, "p1", state="scanning")
    for _ in range(2):
        report(harness, "p1", state="watching")
        assert [(view.id, view.info.state) for view in harness.broker.producers()] == [("p1", "watching")]


def test_producers_are_sorted_by_id(harness: Harness) -> None:
    report(harness, "b", "c", "a")
    assert alive(harness) == ["a", "b", "c"]


def test_a_producer_disappears_when_its_lease_ends(harness: Harness) -> None:
    report(harness, "p1")
    harness.advance(29)
    assert alive(harness) == ["p1"]
    harness.advance(1)
    assert alive(harness) == []
    assert harness.broker.overview().producers == ()


def test_a_report_renews_the_lease(harness: Harness) -> None:
    report(harness, "p1", "p2")
    harness.advance(20)
    report(harness, "p1")
    harness.advance(20)
    assert alive(harness) == ["p1"]
    report(harness, "p2")
    assert alive(harness) == ["p1", "p2"]


def test_leases_may_differ(harness: Harness) -> None:
    report(harness, "short", ttl_ms=10_000)
    report(harness, "long", ttl_ms=60_000)
    harness.advance(10)
    assert alive(harness) == ["long"]


def test_a_removed_producer_is_gone_at_once_and_a_repeat_has_no_effect(harness: Harness) -> None:
    report(harness, "p1", "p2")
    for _ in range(2):
        harness.broker.remove_producer("p1")
        assert alive(harness) == ["p2"]
    harness.broker.remove_producer("unknown")
    report(harness, "p1")
    assert alive(harness) == ["p1", "p2"]


def test_reports_change_no_job_and_no_counter(harness: Harness) -> None:
    enqueue(harness, *names(3))
    before = snapshot(harness, *names(3))
    report(harness, "p1")
    harness.broker.remove_producer("p1")
    assert snapshot(harness, *names(3)) == before
    assert harness.broker.workers() == []
