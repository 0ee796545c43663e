"""Which events make which spans. Emitting never waits for the collector."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from fileq.core.events import (
    AttemptEnded,
    BrokerLost,
    Event,
    JobCancelled,
    JobCompleted,
    JobDead,
    JobFailed,
    JobFenced,
    JobRecovered,
    JobReleased,
)
from fileq.core.job import ClaimKey, Job, attempt_span_id, new_ids, parent_of, traceparent, typed_job
from fileq.observe import tracing
from fileq.observe.tracing import BATCH, SPANS_MAX, Tracing, make_exporter
from tests.support.clocks import RecordedEvents
from tests.support.event_samples import claim_event, end_event, fence_event
from tests.support.waiting import wait_until

NOW = datetime.fromtimestamp(1_800_000_000, UTC)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Exporter(SpanExporter):
    """Keeps the spans that it accepts. A test can make it wait or refuse."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.calls = 0
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        assert self.may_answer.wait(20)
        if self.result is SpanExportResult.SUCCESS:
            self.spans += spans
        return self.result


class Bench:
    """Tracing under test, the spans it sends, and the events it passes on."""

    def __init__(self) -> None:
        self.exporter = Exporter()
        self.told, self.passed_on = RecordedEvents(), RecordedEvents()
        self.tracing = Tracing(self.exporter, self.told)

    def emit(self, event: Event) -> None:
        self.passed_on(self.tracing.traced(event))

    def claim(self, job: Job | None, slot: str = "slot") -> None:
        self.emit(claim_event(job, slot))

    def spans(self) -> dict[str, ReadableSpan]:
        """By name, after everything was sent."""
        self.tracing.close()
        return {span.name: span for span in self.exporter.spans}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(tracing, "FAILURE_PAUSE_S", 0.01)
    monkeypatch.setattr(tracing, "BATCH_DELAY_S", 0.01)
    bench = Bench()
    yield bench
    bench.exporter.may_answer.set()
    bench.tracing.close()


def job(id: str = "job", **changes: Any) -> Job:
    return typed_job("t", None, priority="low", now=NOW, id=id).but(**changes)


@pytest.mark.parametrize(
    ("event", "outcome", "error"),
    [
        (end_event(JobCompleted, duration_ms=5), "completed", None),
        (end_event(JobCompleted, is_superseded=True), "superseded", None),
        (end_event(JobCompleted, is_vanished=True), "skipped", None),
        (end_event(JobFailed, duration_ms=5, error="ValueError: x"), "failed", "ValueError: x"),
        (end_event(JobDead, duration_ms=5, error="gone"), "dead", "gone"),
        (end_event(JobRecovered, duration_ms=5, error="killed by SIGSEGV"), "died", "killed by SIGSEGV"),
        (end_event(JobReleased, duration_ms=5), "released", None),
        (end_event(JobCancelled, duration_ms=5, error="cancelled"), "cancelled", None),
        (fence_event(), "fenced", "fenced"),
    ],
)
def test_each_end_of_an_attempt_is_the_outcome_of_its_span(
    bench: Bench, event: AttemptEnded | JobFenced, outcome: str, error: str | None
) -> None:
    bench.claim(job())
    bench.emit(event)
    process = bench.spans()["process"]
    assert process.attributes is not None
    assert process.attributes["job.outcome"] == outcome
    assert process.attributes.get("job.error") == process.status.description == error
    assert process.status.is_unset is (error is None)
    if isinstance(event, AttemptEnded):
        assert process.end_time - process.start_time == event.duration_ms * 1_000_000  # type: ignore[operator]


def test_an_event_is_passed_on_with_the_ids_of_its_span(bench: Bench) -> None:
    bench.claim(job(trace_id=TRACE_ID, span_id=SPAN_ID))
    bench.emit(end_event(JobCompleted, duration_ms=1, trace_id=TRACE_ID, span_id=SPAN_ID))
    fields = bench.passed_on.fields("job.completed")
    process = bench.spans()["process"]
    assert (fields["trace_id"], int(str(fields["span_id"]), 16)) == (TRACE_ID, process.context.span_id)
    assert fields["span_id"] == attempt_span_id(job(), ClaimKey("slot", 1))


def test_an_event_about_no_attempt_of_this_process_is_passed_on_and_makes_no_span(bench: Bench) -> None:
    bench.claim(None)
    bench.emit(end_event(JobDead, "raw-1", error="not a job"))
    bench.emit(end_event(JobRecovered, "elsewhere", worker_id=None, lost_by="other", error="e"))
    bench.emit(BrokerLost("e"))
    assert bench.spans() == {}
    assert [event for event, _ in bench.passed_on.events] == ["job.claimed", "job.dead", "job.recovered", "broker.lost"]


def test_the_end_of_a_job_may_be_told_after_its_slot_has_claimed_the_next_one(bench: Bench) -> None:
    bench.claim(job("first"))
    bench.claim(job("second"))
    bench.emit(end_event(JobCompleted, "first", duration_ms=1))
    bench.claim(job("third"))
    for id in ("second", "third"):
        bench.emit(end_event(JobCompleted, id, duration_ms=1))
    bench.tracing.close()
    spans = {(span.name, span.attributes["job.id"]): span for span in bench.exporter.spans if span.attributes}
    for id in ("first", "second", "third"):
        parent = spans["process", id].parent
        assert parent is not None
        assert parent.span_id == spans["consume", id].context.span_id


def test_a_job_that_its_slot_claims_again_ends_the_later_attempt(bench: Bench) -> None:
    """The end of the first attempt has no event if the job was deferred for a reason that is known already."""
    bench.claim(job())
    bench.claim(job())
    bench.emit(end_event(JobCompleted, duration_ms=1))
    bench.emit(end_event(JobCompleted, duration_ms=1))
    bench.tracing.close()
    first, second, process = bench.exporter.spans
    assert [first.name, second.name, process.name] == ["consume", "consume", "process"]
    assert process.parent is not None
    assert process.parent.span_id == second.context.span_id


def test_only_the_first_end_of_an_attempt_makes_a_span(bench: Bench) -> None:
    bench.claim(job())
    bench.emit(fence_event())
    bench.emit(end_event(JobCompleted, duration_ms=1))
    bench.tracing.close()
    assert [span.name for span in bench.exporter.spans] == ["consume", "process"]


def test_while_the_collector_hangs_emitting_does_not_wait_and_the_oldest_spans_are_dropped(bench: Bench) -> None:
    bench.exporter.may_answer.clear()
    bench.claim(job("first"))
    wait_until(lambda: bench.exporter.calls)
    for n in range(SPANS_MAX + 10):
        bench.claim(job(f"job-{n}"))
    bench.exporter.may_answer.set()
    wait_until(lambda: len(bench.exporter.spans) == 1 + SPANS_MAX)
    kept = [span.attributes["job.id"] for span in bench.exporter.spans if span.attributes]
    assert kept == ["first", *(f"job-{n}" for n in range(10, SPANS_MAX + 10))]
    assert bench.exporter.calls == 1 + SPANS_MAX // BATCH


def test_an_outage_is_reported_at_its_start_and_at_its_end(bench: Bench) -> None:
    bench.exporter.result = SpanExportResult.FAILURE
    for n in range(5):
        bench.claim(job(f"job-{n}"))
        wait_until(lambda n=n: bench.exporter.calls > n)  # type: ignore[misc]
    bench.exporter.result = SpanExportResult.SUCCESS
    bench.claim(job("heard"))
    wait_until(lambda: bench.told.count("collector.restored"))
    assert [event for event, _ in bench.told.events] == ["collector.lost", "collector.restored"]
    assert bench.told.fields("collector.restored")["dropped"] == 5


def test_a_hurried_close_does_not_wait_for_a_collector_that_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 60.0)
    bench.exporter.may_answer.clear()
    bench.claim(job())
    wait_until(lambda: bench.exporter.calls)
    started_s = time.monotonic()
    bench.tracing.close(is_hurried=True)
    assert time.monotonic() - started_s < 20
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://gateway/otlp", "https://gateway/otlp/v1/traces"),
        ("http://collector:4318/v1/traces", "http://collector:4318/v1/traces"),
        ("http://user:hunter2@collector:4318", "http://collector:4318/v1/traces"),
        ("grpc://user:hunter2@collector:4317", "collector:4317"),
        ("grpc://collector", "collector:4317"),
    ],
)
def test_the_address_of_the_collector_never_contains_the_password(endpoint: str, where: str) -> None:
    exporter: Any = make_exporter(endpoint)
    assert exporter._endpoint == where
    exporter.shutdown()


# ids


def test_new_ids_are_ids() -> None:
    assert len({new_ids() for _ in range(100)}) == 100
    assert traceparent(*new_ids()).count("-") == 3


@pytest.mark.parametrize(
    ("trace_id", "span_id", "parent"),
    [
        (TRACE_ID, SPAN_ID, (TRACE_ID, SPAN_ID)),
        (TRACE_ID.upper(), SPAN_ID.upper(), (TRACE_ID, SPAN_ID)),
        (TRACE_ID, "", (TRACE_ID, "")),
        (TRACE_ID, "0" * 16, (TRACE_ID, "")),
        (TRACE_ID, SPAN_ID + "\n", (TRACE_ID, "")),
    ],
)
def test_the_ids_of_a_job_are_the_parent(trace_id: str, span_id: str, parent: tuple[str, str]) -> None:
    assert parent_of(job(trace_id=trace_id, span_id=span_id)) == parent


@pytest.mark.parametrize("trace_id", ["", "0" * 32, "x" * 32, TRACE_ID[1:], TRACE_ID + "0"])
def test_a_job_without_a_proper_trace_has_one_of_its_own_at_every_attempt(trace_id: str) -> None:
    first, parent_id = parent_of(job(trace_id=trace_id, span_id=SPAN_ID))
    assert parent_id == ""
    assert traceparent(first, SPAN_ID)
    assert parent_of(job(trace_id=trace_id, span_id=SPAN_ID, retries=2))[0] == first
    assert parent_of(job("other", trace_id=trace_id, span_id=SPAN_ID))[0] != first


def test_every_attempt_of_every_slot_has_a_span_of_its_own() -> None:
    claims = [ClaimKey(slot, token) for slot in ("a", "b") for token in (1, 2)]
    assert len({attempt_span_id(job(), claim) for claim in claims}) == 4


def test_a_job_that_was_put_back_after_its_death_has_a_new_span(bench: Bench) -> None:
    for token in (1, 2):
        bench.emit(claim_event(job(), token=token))
        bench.emit(end_event(JobDead, duration_ms=1, error="wrong"))
    bench.tracing.close()
    assert len({span.context.span_id for span in bench.exporter.spans if span.name == "process"}) == 2


def test_ids_that_are_not_whole_are_no_traceparent() -> None:
    assert traceparent(TRACE_ID, SPAN_ID) == f"00-{TRACE_ID}-{SPAN_ID}-01"
    assert traceparent(TRACE_ID, "") == traceparent("", "") == traceparent(TRACE_ID, "x" * 16) == ""
