"""One request to a real receiver on loopback: time limits, sizes, redirects, TLS, and which address is called."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fileq.config.http_settings import WebhookSettings
from fileq.webhooks.sender import (
    ANSWER_KEPT,
    ANSWER_MAX,
    Answer,
    NotSent,
    Sender,
    Stopped,
)
from tests.support.servers.tls import Certificates, make_certificates
from tests.support.webhook_receiver import Receiver, Reply, open_receiver

LIMIT_S = 0.4
PUBLIC = "93.184.215.14"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


def sender_to(port: int, *, timeout_s: float = 5.0, **options: Any) -> Sender:
    allowed = WebhookSettings(allow_http=True, allow_ports=(port,), allow_networks=("127.0.0.0/8",))
    return Sender(allowed, timeout_s=timeout_s, **options)


def post(sender: Sender, url: str) -> Answer:
    return sender.post(url, {"webhook-id": "m1"}, b"{}")


def test_a_message_is_posted_and_the_answer_returned(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    receiver.answer = lambda received: Reply(202, {"Retry-After": "7"}, b"thank you")
    assert post(sender_to(receiver.port), receiver.url + "?a=b") == Answer(202, "thank you", "7")
    [received] = receiver.received
    assert (received.path, received.body) == ("/hook?a=b", b"{}")
    assert (received.headers["host"], received.id) == (f"127.0.0.1:{receiver.port}", "m1")


def test_a_redirect_is_an_answer_and_is_not_followed(receiver: Receiver) -> None:
    inside = f"http://127.0.0.1:{receiver.port}/inside"
    receiver.answer = lambda received: Reply(307, {"Location": inside})
    assert post(sender_to(receiver.port), receiver.url).status == 307
    assert [one.path for one in receiver.received] == ["/hook"]


def test_a_name_is_resolved_once_and_the_checked_address_is_called(receiver: Receiver) -> None:
    """A name that would lead to loopback when it is resolved again."""
    resolved: list[str] = []
    called: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        resolved.append(host)
        return [PUBLIC] if len(resolved) == 1 else ["127.0.0.1"]

    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        called.append(address)
        return socket.create_connection(("127.0.0.1", receiver.port), timeout_s)

    sender = Sender(WebhookSettings(allow_http=True), resolve=resolve, connect=connect)
    assert post(sender, "http://rebinds.example/hook").status == 204
    assert (resolved, called) == (["rebinds.example"], [(PUBLIC, 80)])
    assert receiver.received[0].headers["host"] == "rebinds.example"
    with pytest.raises(NotSent, match=r"not allowed: 127.0.0.1 is not a public address"):
        post(sender, "http://rebinds.example/hook")
    assert len(called) == 1, "nothing was connected to"


@pytest.mark.parametrize(
    "others", [["127.0.0.1"], ["::ffff:127.0.0.1"], ["10.0.0.1"], ["fe80::1%2"], ["64:ff9b::a00:1"]]
)
def test_one_wrong_address_is_enough_to_refuse(others: list[str]) -> None:
    sender = Sender(WebhookSettings(), resolve=lambda host, port: [PUBLIC, *others], connect=_never)
    with pytest.raises(NotSent, match="not allowed"):
        post(sender, "https://example.org/")


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://localhost/",
        "https://0/",
    ],
)
def test_no_spelling_of_loopback_gets_through(url: str) -> None:
    with pytest.raises(NotSent, match=r"not allowed|resolved|no address"):
        post(Sender(WebhookSettings(), connect=_never), url)


@pytest.mark.parametrize("url", ["http://example.org/", "https://example.org:22/", "https://u:p@example.org/"])
def test_the_url_is_checked_at_every_delivery(url: str) -> None:
    with pytest.raises(NotSent, match="the URL"):
        post(Sender(WebhookSettings(), resolve=_never, connect=_never), url)


def _never(*arguments: object) -> Any:
    raise AssertionError("must not be called")


def test_a_name_without_an_address_and_a_resolver_that_hangs() -> None:
    with pytest.raises(NotSent, match="has no address"):
        post(Sender(WebhookSettings(), resolve=lambda host, port: [], connect=_never), "https://example.org/")
    release = threading.Event()
    slow = Sender(WebhookSettings(), timeout_s=LIMIT_S, resolve=lambda *_: [str(release.wait())], connect=_never)
    with pytest.raises(NotSent, match=r"did not answer within 0.4s"):
        post(slow, "https://example.org/")
    release.set()


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that speaks as it likes to one client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    serve(client)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(5)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: "], ids=["silent", "drips a header"])
def test_one_time_limit_holds_for_everything(head: bytes) -> None:
    stop = threading.Event()

    def serve(client: socket.socket) -> None:
        client.sendall(head)
        while not stop.wait(0.05):
            if head:
                client.sendall(b"x")

    with raw_server(serve) as port:
        started_s = time.monotonic()
        with pytest.raises(NotSent, match="did not answer within"):
            post(sender_to(port, timeout_s=LIMIT_S), f"http://127.0.0.1:{port}/")
        assert time.monotonic() - started_s < LIMIT_S + 1
        stop.set()


def test_a_body_that_never_ends_does_not_change_the_status() -> None:
    stop = threading.Event()

    def serve(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not stop.wait(0.05):
            client.sendall(b"x")

    with raw_server(serve) as port:
        assert post(sender_to(port, timeout_s=LIMIT_S), f"http://127.0.0.1:{port}/").status == 200
        stop.set()


class EndlessAnswer:
    """A connection to a receiver that repeats one line for ever. Counts what is read."""

    def __init__(self, head: bytes, line: bytes) -> None:
        self._pending, self._line = head, line
        self.read = 0

    def recv(self, size: int) -> bytes:
        if len(self._pending) < size:
            self._pending += self._line * (1 + size // len(self._line))
        piece, self._pending = self._pending[:size], self._pending[size:]
        self.read += size
        return piece

    def settimeout(self, seconds: float) -> None: ...
    def sendall(self, data: bytes) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n"], ids=["body", "headers"])
def test_at_most_64_kb_of_an_answer_are_read(head: bytes) -> None:
    endless = EndlessAnswer(head, b"X-Long: " + b"y" * 20_000 + b"\r\n")
    sender = Sender(WebhookSettings(allow_http=True), resolve=lambda *_: [PUBLIC], connect=lambda *_: endless)  # type: ignore[arg-type, return-value]
    with contextlib.suppress(NotSent):
        assert len(post(sender, "http://example.org/").text) <= ANSWER_KEPT
    assert endless.read == ANSWER_MAX


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 999999 X\r\n\r\n"])
def test_what_is_no_answer_is_a_failure(answer: bytes) -> None:
    with raw_server(lambda client: client.sendall(answer)) as port, pytest.raises(NotSent, match=r"127\.0\.0\.1"):
        post(sender_to(port), f"http://127.0.0.1:{port}/")


def test_what_a_receiver_sends_instead_of_http_is_cut_and_printable() -> None:
    """L5: the error of a delivery held the whole first line, with its control characters."""
    answer = b"\x1b[2J\x00" + b"A" * 9000 + b"\r\n\r\n"
    with raw_server(lambda client: client.sendall(answer)) as port, pytest.raises(NotSent) as refused:
        post(sender_to(port), f"http://127.0.0.1:{port}/")
    assert str(refused.value).isprintable()
    assert "AAA" in str(refused.value)
    assert len(str(refused.value)) < 200


class SilentReceiver:
    """Accepts one connection, reads once and says nothing. It reads on when the test has stopped the request. With
    `is_full` it accepts none, so that connecting does not end."""

    def __init__(self, is_stopped: threading.Event, *, is_full: bool) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._server.getsockname()[1]
        self.is_reached, self.is_closed = threading.Event(), threading.Event()
        self._others: list[socket.socket] = []
        if is_full:
            for _ in range(3):
                other = socket.socket()
                other.setblocking(False)
                other.connect_ex(("127.0.0.1", self.port))
                self._others.append(other)
            self.is_reached.set()
            return
        self._is_stopped = is_stopped
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:  # the test has ended before a request came
            return
        with client:
            client.recv(1)
            self.is_reached.set()
            self._is_stopped.wait()
            with contextlib.suppress(OSError):
                while client.recv(65536):
                    pass
            self.is_closed.set()

    def close(self) -> None:
        for one in (self._server, *self._others):
            one.close()


@pytest.mark.parametrize("waits_for", ["the name", "the connection", "the handshake", "room to send", "the answer"])
def test_a_request_that_is_stopped_ends_and_closes_its_connection(waits_for: str) -> None:
    """A delivery that was cancelled kept its thread for up to 20 s, whatever it was waiting for."""
    is_stopped, release = threading.Event(), threading.Event()
    receiver = SilentReceiver(is_stopped, is_full=waits_for == "the connection")
    scheme = "https" if waits_for == "the handshake" else "http"
    body = b"x" * (64 << 20 if waits_for == "room to send" else 2)
    ended: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        if waits_for == "the name":
            receiver.is_reached.set()
            release.wait()
        return ["127.0.0.1"]

    def run() -> None:
        sender = sender_to(receiver.port, timeout_s=3_600.0, resolve=resolve)
        with pytest.raises(Stopped):
            sender.post(f"{scheme}://localhost:{receiver.port}/", {}, body, is_stopped.is_set)
        ended.append(waits_for)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert receiver.is_reached.wait(20)
        is_stopped.set()
        thread.join(20)
        assert ended == [waits_for]
        if waits_for not in ("the name", "the connection"):
            assert receiver.is_closed.wait(20)
    finally:
        release.set()
        receiver.close()


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NotSent, match="Connection refused"):
        post(sender_to(port), f"http://127.0.0.1:{port}/")


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory: Path = tmp_path_factory.mktemp("certificates")
    return make_certificates(directory)


@pytest.mark.parametrize(("host", "problem"), [("localhost", ""), ("other.example", "certificate of other.example")])
def test_tls_checks_the_name_although_an_address_is_called(certificates: Certificates, host: str, problem: str) -> None:
    def trusting() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=certificates.ca_file)

    with open_receiver((certificates.server_cert_file, certificates.server_key_file)) as receiver:
        sender = sender_to(receiver.port, resolve=lambda *_: ["127.0.0.1"], tls=trusting)
        url = f"https://{host}:{receiver.port}/hook"
        if problem:
            with pytest.raises(NotSent, match=problem):
                post(sender, url)
            assert receiver.received == []
        else:
            assert post(sender, url).status == 204
            assert receiver.received[0].headers["host"] == f"localhost:{receiver.port}"


def test_a_certificate_that_is_not_trusted_is_refused(certificates: Certificates) -> None:
    with open_receiver((certificates.server_cert_file, certificates.server_key_file)) as receiver:
        sender = sender_to(receiver.port, resolve=lambda *_: ["127.0.0.1"])
        with pytest.raises(NotSent, match="certificate of localhost is not valid"):
            post(sender, receiver.url)
