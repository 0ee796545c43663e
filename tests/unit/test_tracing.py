"""Which spans are made of which events, and that whoever tells never waits for whoever sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from fileq.core.job import Job, typed_job
from fileq.core.trace import attempt_span_id, new_ids, parent_of, traceparent
from fileq.observe import tracing
from fileq.observe.tracing import BATCH, MOST, Tracing, make_exporter
from tests.support.clocks import RecordedEvents
from tests.support.waiting import wait_until

NOW = datetime.fromtimestamp(1_800_000_000, UTC)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Exporter(SpanExporter):
    """Keeps what it is given; holds it up, or refuses it, when told to."""

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
    """A listener, what it sends, and what comes through to the others."""

    def __init__(self) -> None:
        self.exporter = Exporter()
        self.told, self.passed_on = RecordedEvents(), RecordedEvents()
        self.tracing = Tracing(self.exporter, self.told)
        self.emit = self.tracing.around(self.passed_on)

    def claim(self, job: Job | None, slot: str = "slot") -> None:
        self.emit("job.claimed", job_id=job.id if job else "raw-1", job=job, queue="low", worker_id=slot)

    def spans(self) -> dict[str, ReadableSpan]:
        """By name, after everything was sent."""
        self.tracing.close()
        return {span.name: span for span in self.exporter.spans}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(tracing, "REST_S", 0.01)
    monkeypatch.setattr(tracing, "DELAY_S", 0.01)
    bench = Bench()
    yield bench
    bench.exporter.may_answer.set()
    bench.tracing.close()


def job(id: str = "job", **changes: Any) -> Job:
    return typed_job("t", None, priority="low", now=NOW, id=id).but(**changes)


@pytest.mark.parametrize(
    ("event", "fields", "outcome", "error"),
    [
        ("job.completed", {"duration_ms": 5}, "completed", None),
        ("job.completed", {"duration_ms": 0, "is_superseded": True}, "superseded", None),
        ("job.failed", {"duration_ms": 5, "error": "ValueError: x"}, "failed", "ValueError: x"),
        ("job.dead", {"duration_ms": 5, "error": "gone"}, "dead", "gone"),
        ("job.recovered", {"duration_ms": 5, "error": "killed by signal SIGSEGV"}, "died", "killed by signal SIGSEGV"),
        ("job.released", {"duration_ms": 5}, "released", None),
        ("job.cancelled", {"duration_ms": 5, "error": "cancelled"}, "cancelled", None),
        ("job.fenced", {}, "fenced", "fenced"),
    ],
)
def test_each_end_of_an_attempt_is_the_outcome_of_its_span(
    bench: Bench, event: str, fields: dict[str, Any], outcome: str, error: str | None
) -> None:
    bench.claim(job())
    bench.emit(event, job_id="job", worker_id="slot", **fields)
    process = bench.spans()["process"]
    assert process.attributes is not None
    assert process.attributes["job.outcome"] == outcome
    assert process.attributes.get("job.error") == process.status.description == error
    assert process.status.is_unset is (error is None)
    if "duration_ms" in fields:
        assert process.end_time - process.start_time == fields["duration_ms"] * 1_000_000  # type: ignore[operator]


def test_lines_have_the_ids_of_the_span_they_belong_to(bench: Bench) -> None:
    bench.claim(job(trace_id=TRACE_ID, span_id=SPAN_ID))
    bench.emit("job.completed", job_id="job", worker_id="slot", duration_ms=1, trace_id=TRACE_ID, span_id=SPAN_ID)
    fields = bench.passed_on.fields("job.completed")
    process = bench.spans()["process"]
    assert (fields["trace_id"], int(str(fields["span_id"]), 16)) == (TRACE_ID, process.context.span_id)
    assert fields["span_id"] == attempt_span_id(job(), "slot")


def test_what_concerns_no_attempt_of_this_process_is_passed_on_and_makes_no_span(bench: Bench) -> None:
    bench.claim(None)
    bench.emit("job.dead", job_id="raw-1", worker_id="slot", duration_ms=0, error="not a job")
    bench.emit("job.recovered", job_id="elsewhere", lost_by="other", error="e")
    bench.emit("broker.lost", level="warning", error="e")
    assert bench.spans() == {}
    assert [event for event, _ in bench.passed_on.events] == ["job.claimed", "job.dead", "job.recovered", "broker.lost"]


def test_an_end_is_told_once(bench: Bench) -> None:
    bench.claim(job())
    bench.emit("job.fenced", job_id="job", worker_id="slot")
    bench.emit("job.completed", job_id="job", worker_id="slot", duration_ms=1)
    bench.tracing.close()
    assert [span.name for span in bench.exporter.spans] == ["consume", "process"]


def test_while_the_collector_hangs_nobody_waits_and_the_oldest_are_dropped(bench: Bench) -> None:
    bench.exporter.may_answer.clear()
    bench.claim(job("first"))
    wait_until(lambda: bench.exporter.calls)
    for n in range(MOST + 10):
        bench.claim(job(f"job-{n}"))
    bench.exporter.may_answer.set()
    wait_until(lambda: len(bench.exporter.spans) == 1 + MOST)
    kept = [span.attributes["job.id"] for span in bench.exporter.spans if span.attributes]
    assert kept == ["first", *(f"job-{n}" for n in range(10, MOST + 10))]
    assert bench.exporter.calls == 1 + MOST // BATCH


def test_an_outage_is_told_at_its_start_and_at_its_end(bench: Bench) -> None:
    bench.exporter.result = SpanExportResult.FAILURE
    for n in range(5):
        bench.claim(job(f"job-{n}"))
        wait_until(lambda n=n: bench.exporter.calls > n)  # type: ignore[misc]
    bench.exporter.result = SpanExportResult.SUCCESS
    bench.claim(job("heard"))
    wait_until(lambda: bench.told.count("collector.found"))
    assert [event for event, _ in bench.told.events] == ["collector.lost", "collector.found"]
    assert bench.told.fields("collector.found")["dropped"] == 5


def test_what_must_end_at_once_does_not_wait_for_a_collector_that_hangs(
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
def test_where_spans_are_sent_and_that_no_address_holds_a_password(endpoint: str, where: str) -> None:
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
    attempts = [job(retries=r, recoveries=c) for r, c in ((0, 0), (1, 0), (1, 1))]
    assert len({attempt_span_id(attempt, slot) for attempt in attempts for slot in ("a", "b")}) == 6


def test_ids_that_are_not_whole_are_no_traceparent() -> None:
    assert traceparent(TRACE_ID, SPAN_ID) == f"00-{TRACE_ID}-{SPAN_ID}-01"
    assert traceparent(TRACE_ID, "") == traceparent("", "") == traceparent(TRACE_ID, "x" * 16) == ""
