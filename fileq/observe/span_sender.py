"""Sends spans to an OTLP collector from a thread of its own, in batches.

A collector that is down or hangs never blocks the work: spans that it does not accept in time are dropped, the oldest
first, and the outage is logged once. Imported only if tracing is on, because opentelemetry is slow to import.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from fileq import __version__
from fileq.core.events import CollectorLost, CollectorRestored, Emit

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


class FinishedSpan(Struct, frozen=True):
    """A span to send. Times are nanoseconds since the epoch; `parent_id` is "" for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_parent_remote: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    error: str | None = None


class SpanSender:
    """put() never blocks; close() waits a bounded time."""

    def __init__(self, exporter: SpanExporter, emit: Emit) -> None:
        self._exporter = exporter
        self._emit = emit
        self._waiting: deque[FinishedSpan] = deque(maxlen=SPANS_MAX)
        self._dropped = 0  # in this outage
        self._has_dropped = False
        self._failing_since_s: float | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._resource = Resource.create({"service.name": "fileq", "service.version": __version__})
        self._first_error = _FirstError(logging.WARNING)
        # The library would log every failed batch in its own format; we log an outage once.
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self._first_error)
        self._logger.propagate = False
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span: FinishedSpan) -> None:
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
                is_sent = self._exporter.export([self._as_otel(span) for span in batch]) is SpanExportResult.SUCCESS
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
                self._emit(CollectorLost(reason, "spans are dropped, work goes on"))
        elif self._failing_since_s is not None:
            self._emit(CollectorRestored(round(time.monotonic() - self._failing_since_s, 3), self._dropped))
            self._failing_since_s, self._dropped = None, 0

    def _as_otel(self, span: FinishedSpan) -> ReadableSpan:
        parent = _context(span.trace_id, span.parent_id, span.is_parent_remote) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id, False),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.name],
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: str, span_id: str, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


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
