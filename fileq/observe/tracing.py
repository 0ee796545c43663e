"""Makes the spans `produce`, `consume` and `process` out of job events.

It only notes ids and times; span_sender.py sends. Services emit through around(), so that the log lines of an attempt
carry the ids of its span. Imported only if tracing is on, because opentelemetry is slow to import.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct
from opentelemetry.sdk.trace.export import SpanExporter

from fileq.config import Config
from fileq.core.events import AttemptEnded, Emit, Event, JobClaimed, JobCompleted, JobFenced, JobProduced, OutputEvent
from fileq.core.job import Job, parse_time
from fileq.core.trace import attempt_of, attempt_span_id, new_span_id, parent_of
from fileq.observe.span_sender import FinishedSpan, SpanSender, make_exporter

DEFAULT_ENDPOINT = "http://localhost:4318"
CLOSE_S = 1.5  # for sending the last spans; stopping may take 3 s in all
HURRIED_CLOSE_S = 0.2
ERROR_MAX = 1_000  # characters


class _RunningAttempt(Struct, frozen=True):
    job: Job
    trace_id: str
    consume_id: str
    queue: str
    start_ns: int


class Tracing:
    """Keeps the running attempt of each slot of this process and sends a span when it ends.

    A busy slot settles a job and claims the next one in one call, and its events may come in the other order. So the
    attempt before the running one is kept too."""

    def __init__(self, exporter: SpanExporter, emit: Emit, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._sender = SpanSender(exporter, emit)
        self._wall_ns = wall_ns
        self._running: dict[str, _RunningAttempt] = {}  # by slot
        self._replaced: dict[str, _RunningAttempt] = {}  # by slot; the next claim came before the event of their end

    def around(self, emit: Emit) -> Emit:
        """An Emit that makes spans and then passes the event on, with the ids of the span it belongs to."""

        def emit_traced(event: Event) -> None:
            emit(self._trace(event))

        return emit_traced

    def _trace(self, event: Event) -> Event:
        if isinstance(event, AttemptEnded | JobFenced):
            return self._ended(event)
        if isinstance(event, JobClaimed):
            self._claimed(event)
        elif isinstance(event, JobProduced):
            self._produced(event)
        elif isinstance(event, OutputEvent):
            return self._printed(event)
        return event

    def close(self, *, is_hurried: bool = False) -> bool:
        """Sends the last spans within a bounded time. Returns False if any span was dropped, now or earlier."""
        return self._sender.close(HURRIED_CLOSE_S if is_hurried else CLOSE_S)

    def _produced(self, event: JobProduced) -> None:
        """The job already carries the ids of this span, so the worker that claims it can continue the trace."""
        job = event.job
        end_ns = self._wall_ns()
        created = parse_time(job.creation_time)
        start_ns = min(end_ns, int(created.timestamp() * 1000) * 1_000_000) if created is not None else end_ns
        attributes: dict[str, str | int] = {"job.id": job.id, "job.queue": event.queue, "job.size": job.filesize}
        self._sender.put(FinishedSpan("produce", job.trace_id, job.span_id, "", False, start_ns, end_ns, attributes))

    def _claimed(self, event: JobClaimed) -> None:
        if event.job is None:
            return  # bytes that are not a job have no trace
        start_ns = self._wall_ns()
        trace_id, parent_id = parent_of(event.job)
        attempt = _RunningAttempt(event.job, trace_id, new_span_id(), event.queue, start_ns)
        slot = event.worker_id
        before = self._running.get(slot)
        if (
            before is not None and before.job.id != event.job.id
        ):  # the end of the same job is told before its next claim
            self._replaced[slot] = before
        self._running[slot] = attempt
        end_ns, attributes = self._wall_ns(), _attributes(attempt)
        self._sender.put(
            FinishedSpan("consume", trace_id, attempt.consume_id, parent_id, True, start_ns, end_ns, attributes)
        )

    def _printed(self, event: OutputEvent) -> Event:
        slot = event.worker_id or ""
        attempt = self._attempt(slot, event.job_id)
        if attempt is None:
            return event
        span_id = attempt_span_id(attempt.job, slot)
        return msgspec.structs.replace(event, trace_id=attempt.trace_id, span_id=span_id)

    def _attempt(self, slot: str, job_id: str | None) -> _RunningAttempt | None:
        for attempts in (self._running, self._replaced):
            attempt = attempts.get(slot)
            if attempt is not None and attempt.job.id == job_id:
                return attempt
        return None

    def _ended(self, event: AttemptEnded | JobFenced) -> Event:
        """Sends the span of the attempt and returns the event with the ids of that span."""
        slot = event.worker_id or ""
        attempt = self._attempt(slot, event.job_id)
        if attempt is None:
            return event  # a reaper's event, about an attempt of another process
        del (self._running if attempt is self._running.get(slot) else self._replaced)[slot]
        span_id = attempt_span_id(attempt.job, slot)
        end_ns = self._wall_ns()
        if isinstance(event, AttemptEnded):
            end_ns = attempt.start_ns + (event.duration_ms or 0) * 1_000_000
        outcome = _outcome_of(event)
        attributes = {**_attributes(attempt), "job.outcome": outcome}
        error = _error_of(event, outcome)
        if error is not None:
            attributes["job.error"] = error
        trace_id, start_ns = attempt.trace_id, attempt.start_ns
        self._sender.put(
            FinishedSpan("process", trace_id, span_id, attempt.consume_id, False, start_ns, end_ns, attributes, error)
        )
        return msgspec.structs.replace(event, trace_id=trace_id, span_id=span_id)


def _outcome_of(event: AttemptEnded | JobFenced) -> str:
    if isinstance(event, JobCompleted) and event.is_superseded:
        return "superseded"
    if isinstance(event, JobCompleted) and event.is_vanished:
        return "skipped"
    return event.outcome


def _error_of(event: AttemptEnded | JobFenced, outcome: str) -> str | None:
    if isinstance(event, JobFenced):
        return outcome
    return (event.error or outcome)[:ERROR_MAX] if event.is_error else None


def _attributes(attempt: _RunningAttempt) -> dict[str, str | int]:
    return {"job.id": attempt.job.id, "job.queue": attempt.queue, "job.attempt": attempt_of(attempt.job)}


def open_tracing(config: Config, emit: Emit) -> Tracing:
    """Tracing as configured. Nothing connects to the collector before the first span."""
    return Tracing(make_exporter(config.observability.tracing.endpoint or DEFAULT_ENDPOINT), emit)
