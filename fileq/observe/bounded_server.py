"""An HTTP server that slow clients cannot occupy: few connections, a time limit for each, and room for the next one.

Each connection has a thread and serves one request. Connections that have taken longer than the limit are closed. A new
connection always gets in: if there are too many, one of the address with the most of them is closed for it, the oldest
one that has not sent its request yet. A probe sends its request at once, so clients that send nothing do not keep it
out.

The server sleeps until a client connects, a time limit ends or shutdown() is called: without clients it uses no CPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_S = 5.0  # from the connection to the end of the answer
_RECHECK_S = 0.05  # how long a closed connection may take to leave before another one is closed


_RETRY_S = 0.2
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Connection:
    def __init__(self, address: str, ends_s: float) -> None:
        self.address = address
        self.ends_s = ends_s
        self.has_request = False
        self.is_cut = False  # closed by the server; its thread has not ended yet


class BoundedServer(ThreadingHTTPServer):
    """The handler must call request_received() once it has read a request. `on_accept` gets why no client can be
    accepted, once, and "" when one is again."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        timeout_s: float = REQUEST_TIMEOUT_S,
        on_accept: Callable[[int, str], None] = lambda port, problem: None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._timeout_s = timeout_s
        self._on_accept = on_accept
        self._problem = ""
        self._open: dict[Any, _Connection] = {}  # oldest first
        self._changed = threading.Condition()
        self._is_stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        super().__init__(address, handler)  # calls server_close() if it fails

    def server_bind(self) -> None:
        # Not HTTPServer.server_bind(), which resolves our own host name and may wait for the DNS.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "fileq", self.server_address[1]

    def serve_forever(self, poll_interval: float = 0.0) -> None:
        """Until shutdown(). Does not poll: the base class would wake up every `poll_interval` seconds."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        while not self._is_stopping:
            ready = poll.poll(self._next_limit_ms())
            if not self._is_stopping and any(fd == self.fileno() for fd, _ in ready):
                self._handle_request_noblock()  # type: ignore[attr-defined]  # its stub leaves it out
            self.service_actions()

    def get_request(self) -> Any:
        try:
            accepted = super().get_request()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                self._report(error.strerror or repr(error))
                time.sleep(_RETRY_S)  # the client is still waiting, so poll() would return at once
            raise  # the base class ignores it
        if self._problem and not self._has_waiting():
            self._report("")
        return accepted

    def _has_waiting(self) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _report(self, problem: str) -> None:
        if bool(problem) != bool(self._problem):
            self._on_accept(self.server_port, problem)
        self._problem = problem

    def shutdown(self) -> None:
        """Ends serve_forever(), or keeps it from beginning. The caller waits for the thread before server_close()."""
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def server_close(self) -> None:
        super().server_close()
        os.close(self._wake_fd)

    def _next_limit_ms(self) -> float | None:
        """Until the next connection has taken too long; None if there is none."""
        with self._changed:
            ends_s = next((c.ends_s for c in self._open.values() if not c.is_cut), None)
        return None if ends_s is None else max(0.0, ends_s - time.monotonic()) * 1000

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            while len(self._open) >= MAX_CONNECTIONS:
                self._cut_one()
                self._changed.wait(_RECHECK_S)
            self._open[request] = _Connection(client_address[0], time.monotonic() + self._timeout_s)
        super().process_request(request, client_address)

    def request_received(self, request: Any) -> None:
        with self._changed:
            if connection := self._open.get(request):
                connection.has_request = True

    def shutdown_request(self, request: Any) -> None:
        # Behind the lock: _cut() must not use the number of a descriptor that is being closed.
        with self._changed:
            super().shutdown_request(request)
            self._open.pop(request, None)
            self._changed.notify()

    def service_actions(self) -> None:
        """Closes the connections that have taken too long."""
        now_s = time.monotonic()
        with self._changed:
            for request, connection in self._open.items():
                if connection.ends_s > now_s:
                    break
                _cut(request, connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect early."""

    def _cut_one(self) -> None:
        left = [(request, connection) for request, connection in self._open.items() if not connection.is_cut]
        if left:
            [(fullest, _)] = Counter(connection.address for _, connection in left).most_common(1)
            theirs = [one for one in left if one[1].address == fullest]
            _cut(*next((one for one in theirs if not one[1].has_request), theirs[0]))


def _cut(request: Any, connection: _Connection) -> None:
    """Ends the connection; its thread then fails to read or write, and closes it."""
    if not connection.is_cut:
        connection.is_cut = True
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
