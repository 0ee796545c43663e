"""Serves /metrics, /healthz and /readyz of one process. It answers at once, even if the broker does not.

One thread serves all clients, without waiting for any of them: a connection that has not sent its request costs a
descriptor and nothing else. Each connection serves one request and has a deadline. A new connection always gets in: if
there are too many, one of the address with the most of them is closed for it, the oldest one that has not sent its
request yet. A probe sends its request at once, so clients that send nothing do not keep it out.

The thread sleeps until a client does something, a deadline ends or close() is called: without clients it uses no CPU.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, Protocol

from msgspec import Struct

from fileq.core.errors import ConfigError
from fileq.core.events import AcceptResumed, AcceptStopped, Emit, HttpOpened, HttpPortTaken, ignore
from fileq.observe.metrics import CONTENT_TYPE

MAX_CONNECTIONS = 256
REQUEST_TIMEOUT_S = 5.0  # from the connection to the end of the answer
REQUEST_MAX = 16 << 10  # bytes of a request with its headers
BACKLOG = 1024  # clients that wait to be accepted; beyond it their systems try again only after a second
_RETRY_S = 0.2  # after which clients are accepted again where there were no descriptors left
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        self._server.close()

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


class _Client(Struct):
    """A connection. `unsent` is what is left of the answer; None until the request has been received."""

    connection: socket.socket
    address: str
    ends_s: float
    received: bytes = b""
    unsent: memoryview | None = None


class BoundedServer:
    """`report` gets why no client can be accepted, once, and "" when one can be again."""

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[str], ProbeAnswer],
        timeout_s: float,
        report: Callable[[str], None],
    ) -> None:
        self._answer = answer
        self._timeout_s = timeout_s
        self._report = report
        self._problem = ""
        self._clients: dict[int, _Client] = {}  # by descriptor, oldest first
        self._accepts_at_s: float | None = None  # when clients are accepted again; None: they are
        self._is_stopping = False
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._poll.register(self._listener.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Until stop()."""
        while not self._is_stopping:
            for fd, _ in self._poll.poll(self._next_limit_ms()):
                if fd == self._listener.fileno():
                    self._accept()
                elif client := self._clients.get(fd):
                    self._serve(client)
            self._end_waits(time.monotonic())

    def stop(self) -> None:
        """Ends serve(), or keeps it from beginning. The caller waits for its thread before close()."""
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self._close(client)
        self._listener.close()
        os.close(self._wake_fd)

    def _next_limit_ms(self) -> float | None:
        """Until the first connection has taken too long, or clients are accepted again; None if there is neither."""
        ends_s = [client.ends_s for client in self._clients.values()][:1]
        if self._accepts_at_s is not None:
            ends_s.append(self._accepts_at_s)
        return max(0.0, min(ends_s) - time.monotonic()) * 1000 if ends_s else None

    def _end_waits(self, now_s: float) -> None:
        overdue = []
        for client in self._clients.values():
            if client.ends_s > now_s:
                break
            overdue.append(client)
        for client in overdue:
            self._close(client)
        if self._accepts_at_s is not None and self._accepts_at_s <= now_s:
            self._accepts_at_s = None
            self._poll.register(self._listener.fileno(), select.POLLIN)

    def _accept(self) -> None:
        """All clients that wait, but no more than one backlog of them: others have a turn too."""
        for _ in range(BACKLOG):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                self._set_problem("")
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._set_problem(error.strerror or repr(error))
                    self._accepts_at_s = time.monotonic() + _RETRY_S
                    self._poll.unregister(self._listener.fileno())  # it would be ready all the time
                return
            connection.setblocking(False)
            while len(self._clients) >= MAX_CONNECTIONS:
                self._close(self._dispensable())
            client = _Client(connection, address[0], time.monotonic() + self._timeout_s)
            self._clients[connection.fileno()] = client
            self._poll.register(connection.fileno(), select.POLLIN)
            self._serve(client)  # the request of a probe is often there already

    def _set_problem(self, problem: str) -> None:
        if bool(problem) != bool(self._problem):
            self._report(problem)
        self._problem = problem

    def _dispensable(self) -> _Client:
        [(fullest, _)] = Counter(client.address for client in self._clients.values()).most_common(1)
        theirs = [client for client in self._clients.values() if client.address == fullest]
        return next((client for client in theirs if client.unsent is None), theirs[0])

    def _serve(self, client: _Client) -> None:
        """Receives and sends what can be without waiting."""
        try:
            if client.unsent is None and not self._receive(client):
                return
            assert client.unsent is not None
            client.unsent = client.unsent[client.connection.send(client.unsent) :]
            if not client.unsent:
                self._close(client)
        except BlockingIOError:
            return
        except OSError:  # the client has gone
            self._close(client)

    def _receive(self, client: _Client) -> bool:
        """Whether the request is complete. Closes a connection whose client has gone."""
        received = client.connection.recv(REQUEST_MAX)
        client.received += received
        if not received:
            self._close(client)
        elif len(client.received) > REQUEST_MAX:
            self._begin(client, _json(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"error": "the request is too long"}))
        elif b"\r\n\r\n" in client.received or b"\n\n" in client.received:
            self._begin(client, None)
        return client.unsent is not None

    def _begin(self, client: _Client, answer: ProbeAnswer | None) -> None:
        """Begins to answer: what is given, or what the request asks for."""
        method, _, rest = client.received.partition(b"\n")[0].rstrip(b"\r").decode("latin-1").partition(" ")
        if answer is None:
            answer = self._answer_to(method, rest.partition(" ")[0].partition("?")[0])
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
        client.unsent = memoryview("\r\n".join(lines).encode() + (b"" if method == "HEAD" else answer.body))
        self._poll.modify(client.connection.fileno(), select.POLLOUT)

    def _answer_to(self, method: str, path: str) -> ProbeAnswer:
        if method not in ("GET", "HEAD"):  # some probes send HEAD
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are allowed"})
        try:
            return self._answer(path)
        except Exception as error:  # the next request may succeed
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": repr(error)})

    def _close(self, client: _Client) -> None:
        fd = client.connection.fileno()
        self._poll.unregister(fd)
        del self._clients[fd]
        with suppress(OSError):
            client.connection.shutdown(socket.SHUT_RDWR)
        client.connection.close()
