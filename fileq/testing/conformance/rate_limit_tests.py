"""The rate limit: one counter for all producers; only a new version takes a permit."""

from typing import Any

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Enqueued, EnqueueResult, Entry
from fileq.core.job import Version
from fileq.testing.conformance.builders import an_entry, drift, enqueue, has_record, ids_in, names
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

WINDOW_MS = 1000


def new_file(id: str, **options: Any) -> Entry:
    return an_entry(id, version=Version(b"/data/" + id.encode(), "v1"), **options)


def new_files(count: int, prefix: str = "job") -> list[Entry]:
    return [new_file(id) for id in names(count, prefix)]


def test_without_a_limit_nothing_is_counted(harness: Harness) -> None:
    answer = harness.broker.enqueue(new_files(300))
    assert set(answer.results) == {EnqueueResult.ENQUEUED}
    assert (answer.permits, answer.wait_ms) == (0, 0)


def test_each_new_version_takes_a_permit(harness: Harness) -> None:
    answer = harness.broker.enqueue(new_files(3), limit=5)
    assert answer.results == (EnqueueResult.ENQUEUED,) * 3
    assert (answer.permits, answer.wait_ms, answer.existing) == (3, 0, ("", "", ""))


def test_what_is_over_the_limit_is_throttled_and_leaves_no_trace(harness: Harness) -> None:
    answer = harness.broker.enqueue(new_files(5), limit=3)
    assert answer.results == (EnqueueResult.ENQUEUED,) * 3 + (EnqueueResult.THROTTLED,) * 2
    assert answer.permits == 3
    assert 0 < answer.wait_ms <= WINDOW_MS
    assert ids_in(harness, "low") == names(3)
    assert not has_record(harness, "job-0003")
    assert harness.broker.lookup([b"/data/job-0003"]) == [None]
    assert drift(harness) == 0


def test_the_limit_holds_over_several_calls_of_one_window(harness: Harness) -> None:
    assert harness.broker.enqueue(new_files(2, "a"), limit=3).permits == 2
    answer = harness.broker.enqueue(new_files(2, "b"), limit=3)
    assert answer.results == (EnqueueResult.ENQUEUED, EnqueueResult.THROTTLED)
    assert answer.permits == 1


def test_known_versions_and_duplicates_take_no_permit(harness: Harness) -> None:
    harness.broker.enqueue([new_file("a"), an_entry("b")])
    entries = [an_entry("other", version=Version(b"/data/a", "v1")), new_file("b"), new_file("c")]
    answer = harness.broker.enqueue(entries, limit=1)
    results = (EnqueueResult.KNOWN, EnqueueResult.DUPLICATE, EnqueueResult.ENQUEUED)
    assert answer == Enqueued(results, permits=1, existing=("", "b", ""), now_ms=answer.now_ms)


def test_known_versions_are_known_even_when_no_permit_is_left(harness: Harness) -> None:
    harness.broker.enqueue([new_file("a")], limit=1)
    answer = harness.broker.enqueue([new_file("b"), an_entry("c", version=Version(b"/data/a", "v1"))], limit=1)
    assert answer.results == (EnqueueResult.THROTTLED, EnqueueResult.KNOWN)


def test_jobs_without_a_version_pass_without_a_permit(harness: Harness) -> None:
    entries = [new_file("a"), new_file("b"), an_entry("c"), new_file("d", always=True)]
    answer = harness.broker.enqueue(entries, limit=1)
    assert answer.results == (
        EnqueueResult.ENQUEUED,
        EnqueueResult.THROTTLED,
        EnqueueResult.ENQUEUED,
        EnqueueResult.ENQUEUED,
    )
    assert answer.permits == 1
    assert ids_in(harness, "low") == ["a", "c", "d"]


def test_a_call_that_needs_no_permit_opens_no_window(harness: Harness) -> None:
    harness.broker.enqueue([an_entry("a")], limit=1)
    harness.advance(0.6)
    harness.broker.enqueue([new_file("b")], limit=1)
    harness.advance(0.6)
    assert harness.broker.enqueue([new_file("c")], limit=1).results == (EnqueueResult.THROTTLED,)


def test_the_window_ends_a_second_after_its_first_permit(harness: Harness) -> None:
    """Neither later permits nor throttled entries prolong it."""
    harness.broker.enqueue([new_file("a")], limit=2)
    harness.advance(0.5)
    assert harness.broker.enqueue([new_file("b"), new_file("c")], limit=2).results == (
        EnqueueResult.ENQUEUED,
        EnqueueResult.THROTTLED,
    )
    harness.advance(0.5)
    assert harness.broker.enqueue([new_file("c")], limit=2).results == (EnqueueResult.ENQUEUED,)


def test_a_millisecond_before_its_end_the_window_still_holds(harness: Harness) -> None:
    harness.broker.enqueue([new_file("a")], limit=1)
    harness.advance(0.999)
    answer = harness.broker.enqueue([new_file("b")], limit=1)
    assert answer.results == (EnqueueResult.THROTTLED,)
    harness.advance(0.001)
    assert harness.broker.enqueue([new_file("b")], limit=1).results == (EnqueueResult.ENQUEUED,)


def test_wait_ms_is_the_rest_of_the_window(harness: Harness) -> None:
    harness.broker.enqueue([new_file("a")], limit=1)
    harness.advance(0.4)
    wait_ms = harness.broker.enqueue([new_file("b")], limit=1).wait_ms
    assert wait_ms == 600 if harness.is_exact else 0 < wait_ms <= 600
    harness.advance(0.6)
    assert harness.broker.enqueue([new_file("b")], limit=1).results == (EnqueueResult.ENQUEUED,)


def test_a_repeated_call_takes_no_second_permit(harness: Harness) -> None:
    entries = new_files(2)
    harness.broker.enqueue(entries, limit=3)
    ids = tuple(entry.job.id for entry in entries)
    assert harness.broker.enqueue(entries, limit=3) == Enqueued((EnqueueResult.DUPLICATE,) * 2, existing=ids)
    assert harness.broker.enqueue([new_file("c")], limit=3).permits == 1


def test_all_producers_share_the_limit(harness: Harness) -> None:
    other = harness.another()
    assert harness.broker.enqueue(new_files(2, "a"), limit=3).permits == 2
    assert other.enqueue(new_files(2, "b"), limit=3).permits == 1


def test_concurrent_producers_never_exceed_the_limit(harness: Harness) -> None:
    other = harness.another()

    def produce(broker: FullBroker, prefix: str) -> int:
        return sum(broker.enqueue([entry], limit=10).permits for entry in new_files(10, prefix))

    assert sum(run_concurrently(lambda: produce(harness.broker, "x"), lambda: produce(other, "y"))) == 10
    assert len(ids_in(harness, "low")) == 10


def test_a_thousand_against_the_limit(harness: Harness) -> None:
    answer = harness.broker.enqueue(new_files(1000), limit=100)
    assert answer.results == (EnqueueResult.ENQUEUED,) * 100 + (EnqueueResult.THROTTLED,) * 900
    assert answer.permits == 100


def test_the_permits_of_a_dead_producer_expire(harness: Harness) -> None:
    """They end with their window."""
    harness.broker.enqueue(new_files(3), limit=3)
    harness.advance(1.0)
    assert harness.broker.enqueue(new_files(3, "later"), limit=3).permits == 3


def test_an_empty_batch_takes_nothing(harness: Harness) -> None:
    assert harness.broker.enqueue([], limit=1) == Enqueued(())
    enqueue(harness, "x")
    assert harness.broker.enqueue([new_file("a")], limit=1).permits == 1
