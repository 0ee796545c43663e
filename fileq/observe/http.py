"""Serves /metrics, /healthz and /readyz of one process. It answers at once, even if the broker does not."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Protocol

from fileq.core.errors import ConfigError
from fileq.core.events import Emit
from fileq.core.process_events import AcceptResumed, AcceptStopped, HttpOpened, HttpPortTaken
from fileq.observe.bounded_server import REQUEST_TIMEOUT_S, BoundedServer
from fileq.observe.metrics import CONTENT_TYPE


class HealthSource(Protocol):
    """What the endpoints ask of a service of this process."""

    name: str

    def problem(self) -> str:
        """Why it cannot do its work now; "" when it can."""
        ...

    def is_turning(self) -> bool:
        """Whether its loop has made progress recently."""
        ...


class Endpoints:
    """Serves until closed."""

    def __init__(
        self,
        bind: str,
        port: int,
        services: Sequence[HealthSource],
        metrics: Callable[[], bytes],
        broker_problem: Callable[[], str] = lambda: "",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        emit: Emit = lambda event: None,
    ) -> None:
        def report(port: int, problem: str) -> None:
            emit(AcceptStopped(port, problem) if problem else AcceptResumed(port))

        handler = _handler(services, metrics, broker_problem)
        self._server = BoundedServer((bind, port), handler, request_timeout_s, report)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def open_endpoints(
    bind: str,
    port: int,
    services: Sequence[HealthSource],
    metrics: Callable[[], bytes],
    *,
    broker_problem: Callable[[], str] = lambda: "",
    is_port_chosen: bool,
    emit: Emit,
) -> Endpoints:
    """Raises ConfigError if a configured port is in use; if the default port is in use, takes a free one."""
    try:
        endpoints = Endpoints(bind, port, services, metrics, broker_problem, emit=emit)
    except OSError as error:
        if is_port_chosen or error.errno != errno.EADDRINUSE:
            raise ConfigError(
                f"observability.metrics_port is {port} on {bind}: {error.strerror}; choose another, or 0 for any"
            ) from error
        endpoints = Endpoints(bind, 0, services, metrics, broker_problem, emit=emit)
        emit(HttpPortTaken(port, endpoints.port))
    emit(HttpOpened(bind, endpoints.port))
    return endpoints


def _handler(
    services: Sequence[HealthSource], metrics: Callable[[], bytes], broker_problem: Callable[[], str]
) -> type[BaseHTTPRequestHandler]:
    def reasons() -> dict[str, str]:
        """The services that cannot work, with the reason. A service notices a silent broker only after its timeout, so
        the broker's own problem is listed too."""
        found = {service.name: service.problem() for service in services} | {"broker": broker_problem()}
        return {name: problem for name, problem in found.items() if problem}

    class Handler(BaseHTTPRequestHandler):
        server_version = "fileq"
        sys_version = ""

        def do_GET(self) -> None:
            if isinstance(self.server, BoundedServer):
                self.server.request_received(self.request)
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, metrics(), CONTENT_TYPE)
            elif path == "/healthz":
                stuck = [service.name for service in services if not service.is_turning()]
                self._tell(503 if stuck else 200, {"stuck": stuck} if stuck else {"status": "ok"})
            elif path == "/readyz":
                problems = reasons()
                self._tell(503 if problems else 200, {"reasons": problems} if problems else {"status": "ok"})
            else:
                self._tell(404, {"error": f"no {path!r}; there are /metrics, /healthz and /readyz"})

        do_HEAD = do_GET  # some probes send HEAD

        def _tell(self, code: int, body: dict[str, object]) -> None:
            self._answer(code, json.dumps(body).encode() + b"\n", "application/json")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    return Handler
