"""A small OTLP collector for tests: it receives spans over HTTP or gRPC, never replies, or refuses connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.waiting import wait_until


class ReceivedSpan(Struct, frozen=True):
    """One span as it was received; ids are hex, the parent of a root is ""."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool
    message: str
    service: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Collector:
    """The received spans, in order."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self.authorizations: set[str] = set()
        self.endpoint = ""

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            service = {a.key: a.value.string_value for a in group.resource.attributes}["service.name"]
            self._spans += [_received(span, service) for scope in group.scope_spans for span in scope.spans]

    def spans(self, name: str = "", job: str = "") -> list[ReceivedSpan]:
        return [s for s in list(self._spans) if name in ("", s.name) and job in ("", s.attributes["job.id"])]

    def wait(self, name: str, count: int = 1, job: str = "", timeout_s: float = 20.0) -> list[ReceivedSpan]:
        wait_until(lambda: len(self.spans(name, job)) >= count, timeout_s, f"{count} spans {name!r}: {self._spans}")
        return self.spans(name, job)


def _received(span: Any, service: str) -> ReceivedSpan:
    attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes,
        span.status.code == 2,
        span.status.message,
        service,
    )


@contextlib.contextmanager
def http_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_ours = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if is_ours:
                collector.authorizations.add(self.headers.get("Authorization", ""))
                collector.take(body)
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    import grpc

    collector = Collector()

    def export(request: bytes, _context: object) -> bytes:
        collector.take(request)
        return ExportTraceServiceResponse().SerializeToString()

    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.trace.v1.TraceService",
        {"Export": grpc.unary_unary_rpc_method_handler(export)},  # bytes in, bytes out
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    collector.endpoint = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def silent_collector() -> Iterator[str]:
    """host:port of a server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        accepted: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        host, port = listener.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in accepted:
                connection.close()


@contextlib.contextmanager
def refusing_address() -> Iterator[str]:
    """host:port that refuses connections: it is reserved and no process listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        host, port = reserved.getsockname()
        yield f"{host}:{port}"


def traced(endpoint: str) -> dict[str, object]:
    """The settings of a worker that sends its spans to this collector."""
    return {"observability__tracing__enabled": True, "observability__tracing__endpoint": endpoint}
