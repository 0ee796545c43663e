"""A receiver of webhooks: a real HTTP or HTTPS server on loopback. Answers as the test says and keeps what it got."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from msgspec import Struct


class Received(Struct, frozen=True):
    path: str
    headers: Mapping[str, str]  # by lower-case name
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def told(self) -> Any:
        return json.loads(self.body)

    def is_signed_by(self, secret: str) -> bool:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return expected in self.headers["webhook-signature"].split(" ")


class Reply(Struct, frozen=True):
    status: int = 204
    headers: Mapping[str, str] = {}
    body: bytes = b""


Answer: TypeAlias = Callable[[Received], Reply]


class Receiver:
    """`answer` decides; `hold` makes it wait before it answers, as a receiver that hangs."""

    def __init__(self, tls: tuple[str, str] | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.received: list[Received] = []
        self.answer: Answer = lambda received: Reply()
        self.released = threading.Event()  # what a receiver that hangs waits for
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._serve(self)

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        host = "localhost" if self._scheme == "https" else "127.0.0.1"
        return f"{self._scheme}://{host}:{self.port}/hook"

    def hang(self, received: Received) -> Reply:
        self.released.wait()
        return Reply()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        received = Received(handler.path, {name.lower(): value for name, value in handler.headers.items()}, body)
        with self._lock:
            self.received.append(received)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            reply = self.answer(received)
            with contextlib.suppress(OSError):
                handler.send_response(reply.status)
                for name, value in reply.headers.items():
                    handler.send_header(name, value)
                handler.send_header("Content-Length", str(len(reply.body)))
                handler.end_headers()
                handler.wfile.write(reply.body)
        finally:
            with self._lock:
                self.running -= 1

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def open_receiver(tls: tuple[str, str] | None = None, host: str = "127.0.0.1", port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(tls, host, port)
    try:
        yield receiver
    finally:
        receiver.close()
