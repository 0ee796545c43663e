"""Makes the spans `produce`, `consume` and `process` out of job events, and sends them to an OTLP collector.

Tracing only notes ids and times; SpanSender sends, from a thread of its own. Events pass through traced() before they
are logged, so that the log lines of an attempt carry the ids of its span. Imported only if tracing is on, because
opentelemetry is slow to import.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from fileq import __version__
from fileq.config import Config
from fileq.core import events
from fileq.core.events import Emit, Event
from fileq.core.job import ClaimKey, Job, attempt_of, attempt_span_id, new_span_id, parent_of, parse_time

DEFAULT_ENDPOINT = "http://localhost:4318"
CLOSE_S = 1.5  # for sending the last spans; stopping may take 3 s in all
HURRIED_CLOSE_S = 0.2
ERROR_MAX = 1_000  # characters


class _RunningAttempt(Struct, frozen=True):
    job: Job
    claim: ClaimKey
    trace_id: str
    consume: SpanContext
    queue: str
    start_ns: int


class Tracing:
    """Keeps the running attempt of each slot of this process and sends a span when it ends.

    A busy slot settles a job and claims the next one in one call, and its events may come in the other order. So the
    attempt before the running one is kept too."""

    def __init__(self, exporter: SpanExporter, emit: Emit) -> None:
        self._sender = SpanSender(exporter, emit)
        self._running: dict[str, _RunningAttempt] = {}  # by slot
        self._replaced: dict[str, _RunningAttempt] = {}  # by slot; the next claim came before the event of their end

    def traced(self, event: Event) -> Event:
        """Makes spans. Returns the event with the ids of the span it belongs to."""
        if isinstance(event, events.AttemptEnded | events.JobFenced):
            return self._ended(event)
        if isinstance(event, events.JobClaimed):
            self._claimed(event)
        elif isinstance(event, events.JobProduced):
            self._produced(event)
        elif isinstance(event, events.OutputEvent):
            return self._printed(event)
        return event

    def close(self, *, is_hurried: bool = False) -> bool:
        """Sends the last spans within a bounded time. Returns False if any span was dropped, now or earlier."""
        return self._sender.close(HURRIED_CLOSE_S if is_hurried else CLOSE_S)

    def _produced(self, event: events.JobProduced) -> None:
        """The job already carries the ids of this span, so the worker that claims it can continue the trace."""
        job = event.job
        end_ns = time.time_ns()
        created = parse_time(job.creation_time)
        start_ns = min(end_ns, int(created.timestamp() * 1000) * 1_000_000) if created is not None else end_ns
        attributes: dict[str, str | int] = {"job.id": job.id, "job.queue": event.queue, "job.size": job.filesize}
        self._sender.put(span_of("produce", _context(job.trace_id, job.span_id), None, start_ns, end_ns, attributes))

    def _claimed(self, event: events.JobClaimed) -> None:
        if event.job is None:
            return  # bytes that are not a job have no trace
        start_ns = time.time_ns()
        trace_id, parent_id = parent_of(event.job)
        consume = _context(trace_id, new_span_id())
        slot = event.worker_id
        claim = ClaimKey(slot, event.token)
        attempt = _RunningAttempt(event.job, claim, trace_id, consume, event.queue, start_ns)
        before = self._running.get(slot)
        # The end of the same job is reported before its next claim.
        if before is not None and before.job.id != event.job.id:
            self._replaced[slot] = before
        self._running[slot] = attempt
        parent = _context(trace_id, parent_id, is_remote=True) if parent_id else None
        self._sender.put(span_of("consume", consume, parent, start_ns, time.time_ns(), _attributes(attempt)))

    def _printed(self, event: events.OutputEvent) -> Event:
        slot = event.worker_id or ""
        attempt = self._attempt(slot, event.job_id)
        if attempt is None:
            return event
        span_id = attempt_span_id(attempt.job, attempt.claim)
        return msgspec.structs.replace(event, trace_id=attempt.trace_id, span_id=span_id)

    def _attempt(self, slot: str, job_id: str | None) -> _RunningAttempt | None:
        for attempts in (self._running, self._replaced):
            attempt = attempts.get(slot)
            if attempt is not None and attempt.job.id == job_id:
                return attempt
        return None

    def _ended(self, event: events.AttemptEnded | events.JobFenced) -> Event:
        """Sends the span of the attempt and returns the event with the ids of that span."""
        slot = event.worker_id or ""
        attempt = self._attempt(slot, event.job_id)
        if attempt is None:
            return event  # a reaper's event, about an attempt of another process
        del (self._running if attempt is self._running.get(slot) else self._replaced)[slot]
        span_id = attempt_span_id(attempt.job, attempt.claim)
        end_ns = time.time_ns()
        if isinstance(event, events.AttemptEnded):
            end_ns = attempt.start_ns + (event.duration_ms or 0) * 1_000_000
        outcome, error = _outcome_of(event), None
        attributes = {**_attributes(attempt), "job.outcome": outcome}
        if isinstance(event, events.JobFenced):
            error = outcome
        elif event.is_error:
            error = (event.error or outcome)[:ERROR_MAX]
        if error is not None:
            attributes["job.error"] = error
        context = _context(attempt.trace_id, span_id)
        self._sender.put(span_of("process", context, attempt.consume, attempt.start_ns, end_ns, attributes, error))
        return msgspec.structs.replace(event, trace_id=attempt.trace_id, span_id=span_id)


def _outcome_of(event: events.AttemptEnded | events.JobFenced) -> str:
    if isinstance(event, events.JobCompleted) and event.is_superseded:
        return "superseded"
    if isinstance(event, events.JobCompleted) and event.is_vanished:
        return "skipped"
    return event.outcome


def _attributes(attempt: _RunningAttempt) -> dict[str, str | int]:
    return {"job.id": attempt.job.id, "job.queue": attempt.queue, "job.attempt": attempt_of(attempt.job)}


def open_tracing(config: Config, emit: Emit) -> Tracing:
    """Tracing as configured. Nothing connects to the collector before the first span."""
    return Tracing(make_exporter(config.observability.tracing.endpoint or DEFAULT_ENDPOINT), emit)


PATH = "/v1/traces"
SPANS_MAX = 16_384  # spans in memory; beyond that the oldest are dropped
BATCH = 512
BATCH_DELAY_S = 0.5  # how long a span waits for others to share its request
TIMEOUT_S = 5.0  # of one request
FAILURE_PAUSE_S = 5.0
EXPORTER_CLOSE_S = 0.5
GRPC_PORT = 4317
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("fileq", __version__)
_KINDS = {"produce": SpanKind.PRODUCER, "consume": SpanKind.CONSUMER, "process": SpanKind.INTERNAL}


_RESOURCE = Resource.create({"service.name": "fileq", "service.version": __version__})


def span_of(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    start_ns: int,
    end_ns: int,
    attributes: dict[str, str | int],
    error: str | None = None,
) -> ReadableSpan:
    """A span that has ended. Times are nanoseconds since the epoch."""
    return ReadableSpan(
        name,
        context=context,
        parent=parent,
        resource=_RESOURCE,
        attributes=attributes,
        kind=_KINDS[name],
        status=Status(StatusCode.ERROR, error) if error is not None else Status(StatusCode.UNSET),
        start_time=start_ns,
        end_time=end_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


class SpanSender:
    """Sends spans to a collector from a thread of its own, in batches. put() never blocks; close() waits a bounded
    time.

    A collector that is down or hangs never blocks the work: spans that it does not accept in time are dropped, the
    oldest first, and the outage is logged once."""

    def __init__(self, exporter: SpanExporter, emit: Emit) -> None:
        self._exporter = exporter
        self._emit = emit
        self._waiting: deque[ReadableSpan] = deque(maxlen=SPANS_MAX)
        self._dropped = 0  # in this outage
        self._has_dropped = False
        self._failing_since_s: float | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._first_error = _FirstError(logging.WARNING)
        # The library would log every failed batch in its own format; we log an outage once.
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self._first_error)
        self._logger.propagate = False
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span: ReadableSpan) -> None:
        if len(self._waiting) == SPANS_MAX:
            self._dropped += 1
            self._has_dropped = True
        self._waiting.append(span)
        if len(self._waiting) >= BATCH and not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float) -> bool:
        """Sends what waits, within the timeout. Returns False if any span was dropped, now or earlier."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        is_sent = not self._thread.is_alive() and not self._has_dropped
        # The exporter's shutdown can wait 30 s for a dead collector.
        closer = threading.Thread(target=self._exporter.shutdown, name="tracing-closer", daemon=True)
        closer.start()
        closer.join(EXPORTER_CLOSE_S)
        return is_sent

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(BATCH_DELAY_S)
            self._wake.clear()
            self._send_all()
            if self._failing_since_s is not None:
                self._closing.wait(FAILURE_PAUSE_S)
        if self._failing_since_s is None:  # stopping does not wait for a collector that is known to be down
            self._send_all()

    def _send_all(self) -> None:
        """Sends batch after batch until nothing waits or a batch fails."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as error:
                self._first_error.text = self._first_error.text or repr(error)
                is_sent = False
            self._report(is_sent, len(batch))
            if not is_sent:
                return

    def _report(self, is_sent: bool, count: int) -> None:
        """Emits one event when an outage begins and one when it ends."""
        reason, self._first_error.text = self._first_error.text, ""
        if not is_sent:
            self._dropped += count
            self._has_dropped = True
            if self._failing_since_s is None:
                self._failing_since_s = time.monotonic()
                self._emit(events.CollectorLost(reason, "spans are dropped; jobs are not affected"))
        elif self._failing_since_s is not None:
            self._emit(events.CollectorRestored(round(time.monotonic() - self._failing_since_s, 3), self._dropped))
            self._failing_since_s, self._dropped = None, 0


class _FirstError(logging.Handler):
    """Keeps the first message that the library logs about a batch."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


def make_exporter(endpoint: str) -> SpanExporter:
    """An exporter for http(s)://host:port, adding OTLP's path if it is missing, or for grpc://host:port."""
    url = urlsplit(endpoint)
    credentials, _, hosts = url.netloc.rpartition("@")
    if url.scheme == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        metadata = {"authorization": _basic(credentials)} if credentials else None
        where = hosts if url.port else f"{hosts}:{GRPC_PORT}"
        return GrpcExporter(endpoint=where, insecure=True, headers=metadata, timeout=TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    path = url.path.rstrip("/")
    where = url._replace(netloc=hosts, path=path if path.endswith(PATH) else path + PATH).geturl()
    headers = {"authorization": _basic(credentials)} if credentials else None
    return HttpExporter(endpoint=where, headers=headers, timeout=TIMEOUT_S)


def _basic(credentials: str) -> str:
    """As a header, because the endpoint's URL appears in error messages."""
    return "Basic " + base64.b64encode(unquote(credentials).encode()).decode()
