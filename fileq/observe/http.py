"""Serves /metrics, /healthz and /readyz of one process. It answers at once, even if the broker does not.

One thread serves all clients, without waiting for any of them: a connection that has not sent its request costs a
descriptor and nothing else. Each connection serves one request and has a deadline. A new connection always gets in: if
there are too many, one of the address with the most of them is closed for it, the oldest one that has not sent its
request yet. A probe sends its request at once, so clients that send nothing do not keep it out.

The thread has an event loop, which sleeps until a client does something, a deadline ends or close() is called: without
clients it uses no CPU.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from fileq.core.errors import ConfigError
from fileq.core.events import AcceptResumed, AcceptStopped, Emit, HttpOpened, HttpPortTaken, ignore
from fileq.observe.metrics import CONTENT_TYPE

MAX_CONNECTIONS = 256
REQUEST_TIMEOUT_S = 5.0  # from the connection to the end of the answer
REQUEST_MAX = 16 << 10  # bytes of a request with its headers
ACCEPTED_AT_ONCE = 16
RESUMED_S = 1.5  # without a refusal; asyncio tries again a second after one
BACKLOG = 1024  # clients that wait to be accepted; beyond it their systems try again only after a second


class HealthSource(Protocol):
    """What the endpoints ask of a service of this process."""

    name: str

    def problem(self) -> str:
        """Why it cannot do its work now; "" when it can."""
        ...

    def is_turning(self) -> bool:
        """Whether its loop has made progress recently."""
        ...


class ProbeAnswer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class Endpoints:
    def __init__(
        self,
        bind: str,
        port: int,
        services: Sequence[HealthSource],
        metrics: Callable[[], bytes],
        broker_problem: Callable[[], str] = lambda: "",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        is_port_chosen: bool = True,
        emit: Emit = ignore,
    ) -> None:
        """Raises ConfigError if a configured port is in use; if the default port is in use, takes a free one."""
        self._services = services
        self._broker_problem = broker_problem
        self._answers: dict[str, Callable[[], ProbeAnswer]] = {
            "/metrics": lambda: ProbeAnswer(HTTPStatus.OK, metrics(), CONTENT_TYPE),
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

        def report(problem: str) -> None:
            emit(AcceptStopped(self.port, problem) if problem else AcceptResumed(self.port))

        try:
            self._server = BoundedServer((bind, port), self._answer, request_timeout_s, report)
        except OSError as error:
            if is_port_chosen or error.errno != errno.EADDRINUSE:
                # create_server() puts the address into its text once more.
                reason = os.strerror(error.errno) if error.errno == errno.EADDRINUSE else error.strerror
                raise ConfigError(
                    f"observability.metrics_port is {port} on {bind}: {reason}; choose another, or 0 for any"
                ) from error
            self._server = BoundedServer((bind, 0), self._answer, request_timeout_s, report)
            emit(HttpPortTaken(port, self._server.port))
        self.port = self._server.port
        emit(HttpOpened(bind, self.port))
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.stop()
        self._thread.join()

    def _answer(self, path: str) -> ProbeAnswer:
        if path in self._answers:
            return self._answers[path]()
        return _json(HTTPStatus.NOT_FOUND, {"error": f"no {path!r}; known: {', '.join(self._answers)}"})

    def _healthz(self) -> ProbeAnswer:
        stuck = [service.name for service in self._services if not service.is_turning()]
        return _health({"stuck": stuck} if stuck else {})

    def _readyz(self) -> ProbeAnswer:
        """Names what cannot work, with the reason. A service notices a silent broker only after its timeout, so the
        broker's own problem is listed too."""
        found = {service.name: service.problem() for service in self._services} | {"broker": self._broker_problem()}
        reasons = {name: problem for name, problem in found.items() if problem}
        return _health({"reasons": reasons} if reasons else {})


def _health(problem: dict[str, object]) -> ProbeAnswer:
    return _json(HTTPStatus.SERVICE_UNAVAILABLE, problem) if problem else _json(HTTPStatus.OK, {"status": "ok"})


def _json(status: HTTPStatus, body: dict[str, object]) -> ProbeAnswer:
    return ProbeAnswer(status, json.dumps(body).encode() + b"\n")


class BoundedServer:
    """`report` gets why no client can be accepted, once, and "" when one can be again."""

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[str], ProbeAnswer],
        timeout_s: float,
        report: Callable[[str], None],
    ) -> None:
        self.timeout_s = timeout_s
        self.clients: dict[_Client, str] = {}  # with their addresses, oldest first
        self._answer = answer
        self._report = report
        self._resuming: asyncio.TimerHandle | None = None  # while there are no descriptors or memory for clients
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._note_problem(context))
        self._stopping = self._loop.create_future()

    def serve(self) -> None:
        """Until stop()."""
        run = self._loop.run_until_complete
        server = run(self._loop.create_server(lambda: _Client(self), sock=self._listener, backlog=ACCEPTED_AT_ONCE))
        self._listener.listen(BACKLOG)  # of the kernel
        run(self._stopping)
        server.close()
        if accepting := asyncio.all_tasks(self._loop):
            run(asyncio.wait(accepting))
        for client in self.clients:
            client.transport.abort()
        run(asyncio.sleep(0))  # closes their connections
        self._loop.close()

    def stop(self) -> None:
        """Ends serve(), or keeps it from beginning."""
        self._loop.call_soon_threadsafe(self._stopping.set_result, None)

    def admit(self, client: _Client, address: str) -> None:
        while len(self.clients) >= MAX_CONNECTIONS:
            [(fullest, _)] = Counter(self.clients.values()).most_common(1)
            theirs = [one for one, its_address in self.clients.items() if its_address == fullest]
            dispensable = next((one for one in theirs if not one.has_asked), theirs[0])
            del self.clients[dispensable]
            dispensable.transport.abort()
        self.clients[client] = address

    def _note_problem(self, context: dict[str, Any]) -> None:
        """The loop can't accept a client."""
        error = context.get("exception")
        if isinstance(error, OSError) and "transport" not in context:
            if self._resuming is None:
                self._report(error.strerror or repr(error))
            else:
                self._resuming.cancel()
            self._resuming = self._loop.call_later(RESUMED_S, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._report("")

    def response_to(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\n")[0].rstrip(b"\r").decode("latin-1").partition(" ")
        if len(request) > REQUEST_MAX:
            answer = _json(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"error": "the request is too long"})
        elif method not in ("GET", "HEAD"):  # some probes send HEAD
            answer = _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are allowed"})
        else:
            try:
                answer = self._answer(rest.partition(" ")[0].partition("?")[0])
            except Exception as error:  # the next request may succeed
                answer = _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": repr(error)})
        lines = [
            f"HTTP/1.0 {answer.status.value} {answer.status.phrase}",
            "Server: fileq",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Connection: close",
            *(["Allow: GET, HEAD"] if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else []),
            "\r\n",
        ]
        return "\r\n".join(lines).encode() + (b"" if method == "HEAD" else answer.body)


class _Client(asyncio.Protocol):
    """A connection, for one request and until its deadline."""

    transport: asyncio.Transport

    def __init__(self, server: BoundedServer) -> None:
        self._server = server
        self._received = b""
        self.has_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        address = transport.get_extra_info("peername")
        self._deadline = asyncio.get_running_loop().call_later(self._server.timeout_s, transport.abort)
        self._server.admit(self, address[0] if address else "")

    def data_received(self, data: bytes) -> None:
        self._received += data
        is_whole = b"\r\n\r\n" in self._received or b"\n\n" in self._received
        if not self.has_asked and (is_whole or len(self._received) > REQUEST_MAX):
            self.has_asked = True
            self.transport.write(self._server.response_to(self._received))
            self.transport.close()  # when all is sent

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._server.clients.pop(self, None)
