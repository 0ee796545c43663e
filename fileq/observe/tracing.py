"""Spans to an OTLP collector: `produce`, `consume` and `process`, made from what services tell.

Only this module imports opentelemetry, and nobody imports it unless tracing is enabled. Told of something, it notes
ids and times; spans are made and sent by a thread of its own, in batches. A collector that is dead or hangs costs the
work nothing: what it does not take in time is dropped, the oldest first, and one line tells of it.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from fileq import __version__
from fileq.config import Config
from fileq.core.events import Emit
from fileq.core.job import Job, parse_time
from fileq.core.trace import attempt_of, attempt_span_id, new_span_id, parent_of

DEFAULT_ENDPOINT = "http://localhost:4318"
PATH = "/v1/traces"
MOST = 16_384  # spans that wait to be sent; then the oldest are dropped
BATCH = 512
DELAY_S = 0.5  # spans wait so long for others to go with
TIMEOUT_S = 5.0  # of one request
REST_S = 5.0  # after a failure
CLOSE_S = 1.5  # for what is left at the end; less than the 3 s that stopping may take
HURRIED_S = 0.2  # the same, if it must end at once
GRPC_PORT = 4317
LONGEST_ERROR = 1_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("fileq", __version__)


class Noted(Struct, frozen=True):
    """A span that is to be sent. Times are nanoseconds since the epoch; `parent_id` is "" for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_parent_remote: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    error: str | None = None


class _Attempt(Struct, frozen=True):
    """One that runs."""

    job: Job
    trace_id: str
    consume_id: str
    queue: str
    start_ns: int


# How an attempt can end, and the word for it; those with an error are errors of the span.
_OUTCOMES = {
    "job.completed": "completed",
    "job.failed": "failed",
    "job.dead": "dead",
    "job.recovered": "died",
    "job.released": "released",
    "job.cancelled": "cancelled",
    "job.fenced": "fenced",
}
_ERRORS = ("job.failed", "job.dead", "job.recovered", "job.fenced")


class Tracing:
    """Listens on the channel before the others do, so that their lines have the ids of the spans."""

    def __init__(self, exporter: SpanExporter, emit: Emit, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._sender = Sender(exporter, emit)
        self._wall_ns = wall_ns
        self._running: dict[str, _Attempt] = {}  # slot → what it runs
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {
            "job.produced": self._produced,
            "job.claimed": self._claimed,
            **dict.fromkeys(_OUTCOMES, self._ended),
        }

    def around(self, emit: Emit) -> Emit:
        """The channel as services shall use it."""

        def emit_traced(event: str, *, level: str = "info", **fields: Any) -> None:
            listener = self._listeners.get(event)
            if listener is not None:
                listener(event, fields)
            emit(event, level=level, **fields)

        return emit_traced

    def close(self, *, is_hurried: bool = False) -> bool:
        """What waits is sent, if that is quick; False: some, now or before, was not."""
        return self._sender.close(HURRIED_S if is_hurried else CLOSE_S)

    def _produced(self, _event: str, fields: dict[str, Any]) -> None:
        """The ids are in the job already: whoever claims it goes on from there."""
        job: Job = fields["job"]
        end_ns = self._wall_ns()
        made = parse_time(job.creation_time)
        start_ns = min(end_ns, int(made.timestamp() * 1000) * 1_000_000) if made is not None else end_ns
        attributes: dict[str, str | int] = {"job.id": job.id, "job.queue": fields["queue"], "job.size": job.filesize}
        self._sender.put(Noted("produce", job.trace_id, job.span_id, "", False, start_ns, end_ns, attributes))

    def _claimed(self, _event: str, fields: dict[str, Any]) -> None:
        job: Job | None = fields.get("job")
        if job is None:
            return  # bytes that are no job belong to no trace
        start_ns = self._wall_ns()
        trace_id, parent_id = parent_of(job)
        attempt = _Attempt(job, trace_id, new_span_id(), fields["queue"], start_ns)
        self._running[fields["worker_id"]] = attempt
        self._sender.put(
            Noted("consume", trace_id, attempt.consume_id, parent_id, True, start_ns, self._wall_ns(), _about(attempt))
        )

    def _ended(self, event: str, fields: dict[str, Any]) -> None:
        slot = fields.get("worker_id", "")
        attempt = self._running.get(slot)
        if attempt is None or attempt.job.id != fields["job_id"]:
            return  # a reaper's, about what another process ran
        del self._running[slot]
        span_id = attempt_span_id(attempt.job, slot)
        fields["trace_id"], fields["span_id"] = attempt.trace_id, span_id
        duration_ms = fields.get("duration_ms")
        end_ns = self._wall_ns() if duration_ms is None else attempt.start_ns + duration_ms * 1_000_000
        outcome = "superseded" if fields.get("is_superseded") else _OUTCOMES[event]
        attributes = {**_about(attempt), "job.outcome": outcome}
        error = str(fields.get("error") or outcome)[:LONGEST_ERROR] if event in _ERRORS else None
        if error is not None:
            attributes["job.error"] = error
        self._sender.put(
            Noted(
                "process",
                attempt.trace_id,
                span_id,
                attempt.consume_id,
                False,
                attempt.start_ns,
                end_ns,
                attributes,
                error,
            )
        )


def _about(attempt: _Attempt) -> dict[str, str | int]:
    return {"job.id": attempt.job.id, "job.queue": attempt.queue, "job.attempt": attempt_of(attempt.job)}


class Sender:
    """The thread that sends. Nobody else ever waits for the collector, but for a moment at the end."""

    def __init__(self, exporter: SpanExporter, emit: Emit) -> None:
        self._exporter = exporter
        self._emit = emit
        self._waiting: deque[Noted] = deque(maxlen=MOST)
        self._dropped = 0  # in this outage
        self._has_lost = False
        self._failed_s: float | None = None  # since when
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._resource = Resource.create({"service.name": "fileq", "service.version": __version__})
        self._reasons = _Reasons()
        # What the library has to say goes through us: it would write a line for every batch, and not as we do.
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self._reasons)
        self._logger.propagate = False
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span: Noted) -> None:
        if len(self._waiting) == MOST:
            self._dropped += 1
            self._has_lost = True
        self._waiting.append(span)
        if len(self._waiting) >= BATCH and not self._wake.is_set():
            self._wake.set()

    def close(self, patience_s: float) -> bool:
        """What waits is sent if that is quick; then the collector is left alone."""
        self._closing.set()
        self._wake.set()
        self._thread.join(patience_s)
        is_sent = not self._thread.is_alive() and not self._has_lost
        closer = threading.Thread(target=self._exporter.shutdown, name="tracing-closer", daemon=True)
        closer.start()
        closer.join(0.5)
        return is_sent

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(DELAY_S)
            self._wake.clear()
            self._send_all()
            if self._failed_s is not None:
                self._closing.wait(REST_S)
        if self._failed_s is None:  # else it is known to be away, and stopping need not wait for it
            self._send_all()

    def _send_all(self) -> None:
        """Batch after batch, until nothing is left or one fails."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                is_sent = self._exporter.export([self._span(noted) for noted in batch]) is SpanExportResult.SUCCESS
            except Exception as error:
                self._reasons.first = self._reasons.first or repr(error)
                is_sent = False
            self._tell(is_sent, len(batch))
            if not is_sent:
                return

    def _tell(self, is_sent: bool, count: int) -> None:
        """Once at the start of an outage, once at its end."""
        reason, self._reasons.first = self._reasons.first, ""
        if not is_sent:
            self._dropped += count
            self._has_lost = True
            if self._failed_s is None:
                self._failed_s = time.monotonic()
                self._emit("collector.lost", level="warning", error=reason, action="spans are dropped, work goes on")
        elif self._failed_s is not None:
            seconds = round(time.monotonic() - self._failed_s, 3)
            self._emit("collector.found", seconds=seconds, dropped=self._dropped)
            self._failed_s, self._dropped = None, 0

    def _span(self, noted: Noted) -> ReadableSpan:
        parent = _context(noted.trace_id, noted.parent_id, noted.is_parent_remote) if noted.parent_id else None
        return ReadableSpan(
            noted.name,
            context=_context(noted.trace_id, noted.span_id, False),
            parent=parent,
            resource=self._resource,
            attributes=noted.attributes,
            kind=_KINDS[noted.name],
            status=Status(StatusCode.ERROR, noted.error) if noted.error is not None else Status(StatusCode.UNSET),
            start_time=noted.start_ns,
            end_time=noted.end_ns,
            instrumentation_scope=_SCOPE,
        )


_KINDS = {"produce": SpanKind.PRODUCER, "consume": SpanKind.CONSUMER, "process": SpanKind.INTERNAL}


def _context(trace_id: str, span_id: str, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


class _Reasons(logging.Handler):
    """Keeps the first thing that the library says about a batch."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def open_tracing(config: Config, emit: Emit) -> Tracing:
    """As configured. Nothing is sent, nor is the collector looked for, before there is a span."""
    return Tracing(make_exporter(config.observability.tracing.endpoint or DEFAULT_ENDPOINT), emit)


def make_exporter(endpoint: str) -> SpanExporter:
    """http(s)://host:port, with the path of OTLP added where it is not there already, or grpc://host:port."""
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
    """Apart from the address, which ends up in error messages."""
    return "Basic " + base64.b64encode(unquote(credentials).encode()).decode()
