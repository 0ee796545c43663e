"""Clients that hold on to the server: connections, headers, bodies and answers that take for ever, and lengths that can
be read in two ways. A probe is answered all the same."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fileq.commands.api_keys import KeyStore
from fileq.core.api_key import Scope
from fileq.core.events import ServerWarned
from fileq.server import connections, event_hub, limits, role, services, web_app
from fileq.server.authentication import Authentication
from tests.support.api_client import ADMIN_KEY, API, ApiClient, served_api
from tests.support.live_client import SocketClient
from tests.support.program import Program
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup


def connect(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0))
    client.sendall(sent)
    return client


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def answer(port: int, sent: bytes, source: str = "127.0.0.1") -> bytes:
    """All that the server sends until it closes the connection."""
    with closing(connect(port, sent, source)) as client, client.makefile("rb") as stream:
        return stream.read()


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def test_idle_connections_take_no_more_than_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: connections that send nothing do not keep others out, and most of all not those of other addresses."""
    monkeypatch.setattr(role, "CONNECTIONS_MAX", 16)
    with served_api(tmp_path) as api, ExitStack() as stack:
        port = api.client.port
        mine = stack.enter_context(closing(connect(port)))
        others = [stack.enter_context(closing(connect(port, b"GET", source="127.0.0.2"))) for _ in range(100)]
        wait_until(lambda: sum(not is_closed(one) for one in others) <= 8, what="half of all connections are left")
        assert api.client.send("GET", "/healthz").status == 200
        assert not is_closed(mine), "the address with the most connections loses one"
        # In development mode asyncio warns of slow turns too.
        warned = (event.reason for event in api.events if isinstance(event, ServerWarned))
        warnings = [reason for reason in warned if not reason.startswith("Executing <")]
        assert warnings == ["127.0.0.2 has 8 connections, the maximum: idle ones are closed for new ones"]


def test_connections_with_requests_are_not_closed_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: a flood closes what is idle; a request in progress is answered."""
    monkeypatch.setattr(role, "CONNECTIONS_MAX", 16)
    with served_api(tmp_path) as api, ExitStack() as stack:
        stream = stack.enter_context(
            closing(connect(api.client.port, head("GET", "/api/v1/events", f"X-API-Key: {ADMIN_KEY}")))
        )
        assert stream.recv(15) == b"HTTP/1.1 200 OK"
        for _ in range(100):
            stack.enter_context(closing(connect(api.client.port)))
        assert api.client.send("GET", "/healthz").status == 200
        wait_until(lambda: not is_closed(stream), what="it is open")


LOGIN = head("POST", "/login", "Sec-Fetch-Site: same-origin", "Content-Length: 3000") + b"k"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(LOGIN, id="login"),
        pytest.param(
            head("POST", "/api/v1/jobs", f"X-API-Key: {ADMIN_KEY}", "Content-Length: 3000") + b"{", id="with a key"
        ),
    ],
)
def test_bodies_that_do_not_go_on_keep_no_one_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """B1: a stranger closed the port for all with one byte of a form on each connection."""
    monkeypatch.setattr(role, "CONNECTIONS_MAX", 16)
    with served_api(tmp_path) as api, ExitStack() as stack:
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            others = [stack.enter_context(closing(connect(api.client.port, sent, source))) for _ in range(40)]
            wait_until(lambda others=others: sum(not is_closed(one) for one in others) <= 8, what="the most are open")
            assert api.client.send("GET", "/healthz").status == 200


def test_the_forms_of_strangers_have_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: few bodies of unknown senders are read at a time, of one address and of all."""
    monkeypatch.setattr(limits, "DROPPED_S", 0.1)
    monkeypatch.setattr(limits, "STRANGERS_OF_ONE", 1)
    monkeypatch.setattr(limits, "STRANGERS_MAX", 2)
    with served_api(tmp_path) as api, ExitStack() as stack:
        port = api.client.port
        for source in ("127.0.0.2", "127.0.0.3"):
            stack.enter_context(closing(connect(port, LOGIN, source)))
            found = answer(port, LOGIN, source)
            assert found.startswith(b"HTTP/1.1 503 ")
            assert b"this address has reached its limit of 1 forms in transit" in found
        assert b"the limit of 2 forms in transit at a time is reached" in answer(port, LOGIN, "127.0.0.4")
        assert api.client.send("GET", "/login").status == 200
        stack.close()
        own = {"Sec-Fetch-Site": "same-origin"}
        form = f"key={ADMIN_KEY}".encode()
        wait_until(lambda: ApiClient(port).send("POST", "/login", form, own).status == 303, what="they are given back")


def test_the_form_of_a_stranger_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: it is shorter than that of a body with a key."""
    monkeypatch.setattr(limits, "STRANGER_S", 0.1)
    with served_api(tmp_path) as api:
        found = answer(api.client.port, LOGIN)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in found


CHUNKED = head("POST", "/healthz", "Transfer-Encoding: chunked") + b"0\r\n"
MOST = "a:", "b:", *(f"x{n}: 1" for n in range(95)), "Connection: close"  # and Host, and one to come


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(head("GET", "/healthz", *MOST, "y: 1"), 200, id="100 headers"),
        pytest.param(head("GET", "/healthz", *MOST, "y: 1", "z: 1"), 431, id="101 headers"),
        pytest.param(head("GET", "/healthz", *MOST, "y: 1", "z: 1")[:-2], 431, id="101 headers without an end"),
        pytest.param(head("GET", "/healthz", *["a:"] * 16_000), 431, id="16,000 headers"),
        pytest.param(head("GET", "/healthz", "Connection: close", f"a: {'x' * 16_000}"), 200, id="16 kB"),
        pytest.param(head("GET", "/healthz", f"a: {'x' * 16_384}"), 431, id="more than 16 kB"),
        pytest.param(CHUNKED + b"\r\n" + head("GET", "/healthz", *MOST, "y: 1"), 200, id="100 after a body"),
    ],
)
def test_a_request_with_many_headers_is_refused_unread(tmp_path: Path, sent: bytes, status: int) -> None:
    """B2: to take 16,000 headers apart held the server for 0.3 s."""
    with served_api(tmp_path) as api:
        found = answer(api.client.port, sent).split(b"HTTP/1.1 ")
        assert int(found[-1][:3]) == status
        assert api.client.send("GET", "/healthz").status == 200


def test_many_trailers_after_a_body_are_refused_too(tmp_path: Path) -> None:
    """B2: the parser reads them as it reads headers."""
    with served_api(tmp_path) as api:
        found = answer(api.client.port, CHUNKED + b"a:\r\n" * 102 + b"\r\n")
        assert found.startswith(b"HTTP/1.1 431 ")
        late = head("GET", "/api/v1/events", f"X-API-Key: {ADMIN_KEY}", "Transfer-Encoding: chunked")
        with closing(connect(api.client.port, late)) as client, client.makefile("rb") as stream:
            assert stream.readline().startswith(b"HTTP/1.1 200 ")
            client.sendall(b"0\r\n" + b"a:\r\n" * 102 + b"\r\n")
            stream.read()  # to the end: an answer that has begun is cut off
        assert not [event for event in api.events if isinstance(event, ServerWarned) and "Fatal" in event.reason]


def test_a_body_of_many_chunks_takes_many_turns_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B2, by chunks of one byte: 30 bodies of 240 kB held the server for 16 s. It serves others between 50 chunks."""
    turns = []
    go_on = connections.AbortableHttp._go_on

    def counted(protocol: connections.AbortableHttp) -> None:
        turns.append(protocol)
        go_on(protocol)

    monkeypatch.setattr(connections.AbortableHttp, "_go_on", counted)
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    content = os.urandom(30_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
    sent = head("PUT", "/api/v1/uploads/a", f"X-API-Key: {ADMIN_KEY}", "Transfer-Encoding: chunked") + chunks
    with served_api(tmp_path, {"server": {"upload_dir": str(uploads)}}) as api:
        found = answer(api.client.port, sent + head("GET", "/healthz", "Connection: close"))
        assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"201", b"200"]
        assert (uploads / "a").read_bytes() == content
        assert len(turns) >= len(content) // 50
        del turns[:]
        refused = head("POST", "/healthz", "Transfer-Encoding: chunked") + chunks
        found = answer(api.client.port, refused + head("GET", "/healthz", "Connection: close"))
        assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"405", b"200"]
        assert len(turns) >= len(content) // 50, "also if the answer does not need the body"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: loc", id="half the headers"),
        pytest.param(head("POST", "/api/v1/jobs", "Content-Length: 1000000"), id="a body after the refusal"),
    ],
)
def test_a_client_that_sends_bytes_now_and_then_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """H3: the headers of a request have a deadline that further bytes do not move."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    monkeypatch.setattr(connections, "CHECK_S", 0.02)
    with served_api(tmp_path) as api, closing(connect(api.client.port, sent)) as client:

        def is_refused() -> bool:
            try:
                client.setblocking(False)
                client.send(b"x")
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return is_closed(client)

        wait_until(is_refused, what="the connection is closed")
        assert api.client.send("GET", "/healthz").status == 200


PING, TEXT, PONG, PART = 0x89, 0x81, 0x8A, 0x01


@pytest.mark.parametrize("kinds", [(PING,), (TEXT,), (PONG,), (PART, 0x00)], ids=["ping", "text", "pong", "parts"])
def test_a_client_that_floods_a_websocket_is_disconnected(tmp_path: Path, kinds: tuple[int, ...]) -> None:
    """N1: a key with the scope read stopped the server with frames of 6 bytes: /healthz had no answer for 60 s. Few are
    taken apart; those that an honest client sends are no flood."""
    with served_api(tmp_path) as api:
        reader = api.client_with(Scope.READ)
        first, *later = ([kind, 0x80, 0, 0, 0, 0] for kind in kinds)
        frames = b"".join(map(bytes, [first, *later * 999] if later else [first] * 1000))
        honest, hostile = (SocketClient(reader.port, f"{API}/ws", {"X-API-Key": reader.key}) for _ in range(2))
        with closing(honest), closing(hostile):
            honest.socket.sendall(frames[:18])
            received = b""
            with contextlib.suppress(ConnectionError):
                hostile.socket.sendall(frames)
                while part := hostile.socket.recv(1 << 16):
                    received += part
            assert len(received) <= 2 * connections.FRAMES_S, "answers to so many pings at most"
            id = api.client.post("/jobs", {"type": "note"}).json["id"]
            assert honest.next()["job_id"] == id


def test_frames_before_the_answer_to_the_request_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: while a WebSocket was being opened, the server kept all that its client sent."""
    is_opening, go_on = threading.Event(), threading.Event()
    admit = KeyStore.load_with_ended

    def slow(keys: KeyStore) -> Any:
        is_opening.set()
        go_on.wait(30)
        return admit(keys)

    with served_api(tmp_path) as api:
        reader = api.client_with(Scope.READ)
        monkeypatch.setattr(KeyStore, "load_with_ended", slow)
        monkeypatch.setattr(limits, "ANSWER_S", 30.0)
        upgrade = "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"
        key = f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"
        sent = head("GET", "/api/v1/ws", *upgrade, key, f"X-API-Key: {reader.key}")
        with closing(connect(api.client.port, sent)) as client:
            assert is_opening.wait(30)
            client.sendall(b"x")
            wait_until(lambda: is_closed(client), what="the connection is closed")
            go_on.set()


def test_requests_that_come_together_read_the_keys_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N8: when the cache of keys expired, each of 400 requests with a wrong key read all keys by itself, and others got
    503."""
    monkeypatch.setattr(limits, "ANSWER_S", 30.0)
    is_reading, go_on = threading.Event(), threading.Event()
    readings, arrived = [], []
    load, known = KeyStore.load_with_ended, Authentication._known

    def slow(keys: KeyStore) -> Any:
        readings.append(keys)
        is_reading.set()
        assert go_on.wait(30)
        return load(keys)

    async def counted(authentication: Authentication, *arguments: Any, **named: Any) -> Any:
        arrived.append(authentication)
        return await known(authentication, *arguments, **named)

    with served_api(tmp_path) as api, ThreadPoolExecutor(20) as threads:
        reader = api.client_with(Scope.READ)
        monkeypatch.setattr(KeyStore, "load_with_ended", slow)
        monkeypatch.setattr(Authentication, "_known", counted)
        wrong = api.client.with_key(reader.key[:-3] + "xyz")
        waiting = [threads.submit(one.call, "GET", "/whoami") for one in [*[wrong] * 19, reader]]
        assert is_reading.wait(30)
        wait_until(lambda: len(arrived) == 20, what="all wait for the keys")
        go_on.set()
        assert [one.result(30).status for one in waiting] == [401] * 19 + [200]
        assert len(readings) == 1


def test_a_key_that_is_revoked_while_keys_are_read_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8: what was read before a change of this server must not count after it."""
    monkeypatch.setattr(limits, "ANSWER_S", 30.0)
    is_read, go_on = threading.Event(), threading.Event()
    load = KeyStore.load_with_ended

    def slow(keys: KeyStore) -> Any:
        found = load(keys)
        if not is_read.is_set():
            is_read.set()
            assert go_on.wait(30)
        return found

    with served_api(tmp_path) as api, ThreadPoolExecutor(1) as threads:
        reader = api.client_with(Scope.READ)
        [id] = [one["id"] for one in api.client.get("/keys")["keys"]]
        monkeypatch.setattr(KeyStore, "load_with_ended", slow)
        waiting = threads.submit(reader.call, "GET", "/whoami")
        assert is_read.wait(30)
        assert api.client.delete(f"/keys/{id}").status == 200
        go_on.set()
        assert [waiting.result(30).status, reader.call("GET", "/whoami").status] == [401, 401]


def test_a_warning_of_asyncio_is_one_event_however_often_it_comes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """N2: a client that had gone filled the log with 431,585 lines that were no JSON."""
    with served_api(tmp_path) as api:
        for _ in range(1000):
            logging.getLogger("asyncio").warning("socket.send() raised exception.")
        warnings = [event.reason for event in api.events if isinstance(event, ServerWarned)]
        assert warnings == ["socket.send() raised exception."]
    assert "socket.send()" not in capfd.readouterr().err


def test_a_client_that_does_not_read_its_answers_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: what a client does not read is not kept for it for ever."""
    monkeypatch.setattr(connections, "READ_S", 0.1)
    monkeypatch.setattr(connections, "CHECK_S", 0.02)
    made = []

    class Noted(connections.Connections):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(role, "Connections", Noted)
    with served_api(tmp_path) as api, closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", api.client.port))
        client.sendall(head("GET", "/api/v1/openapi.json", f"X-API-Key: {ADMIN_KEY}") * 200)
        wait_until(lambda: made[0].connections, what="it is open")
        wait_until(lambda: not made[0].connections, what="the server closes it")
        assert api.client.send("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "request_head",
    [
        head("POST", "/api/v1/jobs", "Content-Length: 5", "Transfer-Encoding: chunked"),
        head("POST", "/api/v1/jobs", "Transfer-Encoding: chunked", "Content-Length: 5"),
        head("POST", "/api/v1/jobs", "Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
        head("POST", "/api/v1/jobs", "Transfer-Encoding: gzip, chunked"),
        head("POST", "/api/v1/jobs", "Content-Length: 5", "Content-Length: 6"),
        head("POST", "/api/v1/jobs", "Content-Length: 5, 6"),
        head("POST", "/api/v1/jobs", "Content-Length: +5"),
        head("POST", "/api/v1/jobs", "Content-Length: 0x5"),
    ],
)
def test_a_body_of_ambiguous_length_is_refused_and_the_connection_closed(tmp_path: Path, request_head: bytes) -> None:
    """Low: Content-Length with Transfer-Encoding. What follows is not read as another request."""
    with served_api(tmp_path) as api:
        found = answer(api.client.port, request_head + b"0\r\n\r\n" + head("GET", "/healthz"))
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.count(b"HTTP/1.1") == 1


class SlowDecoder:
    """Decodes a body when it may go on."""

    def __init__(self) -> None:
        self.is_decoding, self.go_on = threading.Event(), threading.Event()
        self.decode = web_app.decode_body

    def __call__(self, raw: bytes, type: Any) -> Any:
        self.is_decoding.set()
        assert self.go_on.wait(30)
        return self.decode(raw, type)


def test_a_long_body_is_decoded_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: unknown JSON fields block the loop: other clients are answered while a body is decoded."""
    slow = SlowDecoder()
    monkeypatch.setattr(web_app, "decode_body", slow)
    with served_api(tmp_path) as api, ThreadPoolExecutor(1) as threads:
        body = {"type": "note", "payload": "x" * web_app.SHORT_BODY}
        posted = threads.submit(api.client.post, "/jobs", body)
        assert slow.is_decoding.wait(30)
        assert api.client.send("GET", "/healthz").status == 200
        slow.go_on.set()
        assert posted.result(30).status == 201


def test_a_body_that_arrives_too_slowly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: bodies that never end: of JSON, and of uploads, from which nothing is left."""
    monkeypatch.setattr(limits, "RATE_S", 0.2)
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    lines = f"X-API-Key: {ADMIN_KEY}", "Content-Type: application/json", "Content-Length: 1000"
    with served_api(tmp_path, {"server": {"upload_dir": str(uploads)}}) as api:
        for method, path in (("POST", "/api/v1/jobs"), ("PUT", "/api/v1/uploads/a")):
            found = answer(api.client.port, head(method, path, *lines) + b"{")
            assert found.startswith(b"HTTP/1.1 408 ")
            assert b"problem:too-slow" in found
        assert list(uploads.iterdir()) == []


def test_a_body_has_a_deadline_even_if_it_keeps_arriving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: bodies that never end: one that is kept in memory has a deadline as a whole."""
    monkeypatch.setattr(limits, "BODY_S", 0.2)
    lines = f"X-API-Key: {ADMIN_KEY}", "Content-Type: application/json", "Content-Length: 1000000"
    with served_api(tmp_path) as api:
        found = answer(api.client.port, head("POST", "/api/v1/jobs", *lines) + b" " * limits.RATE_BYTES)
        assert found.startswith(b"HTTP/1.1 408 ")


def test_the_bodies_of_one_key_take_their_share_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: bodies that never end: their bytes are limited, for one key and in total."""
    monkeypatch.setattr(limits, "BODIES_OF_ONE", 5000)
    body = {"type": "note", "payload": "x" * 2000}
    with served_api(tmp_path) as api:
        other = api.client_with(Scope.ENQUEUE)
        lines = f"X-API-Key: {ADMIN_KEY}", "Content-Type: application/json", "Content-Length: 10000"
        with closing(connect(api.client.port, head("POST", "/api/v1/jobs", *lines) + b" " * 4000)):
            wait_until(lambda: api.client.post("/jobs", body).slug == "busy", what="the share is used up")
            assert other.post("/jobs", body).status == 201
        wait_until(lambda: api.client.post("/jobs", body).status == 201, what="the share is given back")


@pytest.mark.parametrize("value", [b"{}", b'{"x":1}', b"[]"])
def test_a_body_of_many_small_values_is_refused_before_it_is_decoded(tmp_path: Path, value: bytes) -> None:
    """Medium: 8 MB of `{}` took 408 MB of memory, and 12 bodies of 3 MB of one key 1.1 GB."""
    with served_api(tmp_path) as api:
        body = b'{"jobs":[' + b",".join([value] * 600_000) + b"]}"
        lines = f"X-API-Key: {ADMIN_KEY}", "Content-Type: application/json", f"Content-Length: {len(body)}"
        found = answer(api.client.port, head("POST", "/api/v1/jobs/bulk", *lines) + body)
        assert found.startswith(b"HTTP/1.1 413 ")
        assert b"the body has more than 1,000,000 values" in found


def test_the_values_in_the_bodies_of_one_key_take_their_share_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, by several bodies at a time."""
    monkeypatch.setattr(limits, "VALUES_OF_ONE", 30_000)
    slow = SlowDecoder()
    body = {"type": "note", "payload": [1] * 20_000}
    with served_api(tmp_path) as api, ThreadPoolExecutor(1) as threads:
        other = api.client_with(Scope.ENQUEUE)
        monkeypatch.setattr(web_app, "decode_body", slow)
        first = threads.submit(api.client.post, "/jobs", body)
        assert slow.is_decoding.wait(30)
        assert api.client.post("/jobs", body).slug == "busy"
        monkeypatch.setattr(web_app, "decode_body", slow.decode)
        assert other.post("/jobs", body).status == 201
        slow.go_on.set()
        assert first.result(30).status == 201
        wait_until(lambda: api.client.post("/jobs", body).status == 201, what="the share is given back")


def test_one_key_takes_its_share_of_uploads_streams_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: one key starves uploads and streams of all."""
    monkeypatch.setattr(services, "TRANSFERS_OF_ONE", 1)
    monkeypatch.setattr(event_hub, "STREAMS_OF_ONE", 1)
    monkeypatch.setattr(services, "WAITS_OF_ONE", 1)
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with served_api(tmp_path, {"server": {"upload_dir": str(uploads)}}) as api:
        id = api.client.post("/jobs", {"type": "note"}).json["id"]
        other = api.client_with(Scope.ENQUEUE, Scope.READ)

        def status(key: str, method: str, path: str, *lines: str) -> str:
            """Of the answer to one request, as soon as it begins."""
            sent = head(method, f"/api/v1{path}", f"X-API-Key: {key}", "Content-Length: 0", *lines)
            with closing(connect(api.client.port, sent)) as client:
                return client.recv(12).decode().removeprefix("HTTP/1.1 ")

        for held, tried in (
            (("PUT", "/uploads/a", "9"), ("PUT", "/uploads/b")),
            (("GET", "/events", "0"), ("GET", "/events")),
            (("GET", f"/jobs/{id}/wait?timeout=30", "0"), ("GET", f"/jobs/{id}/wait?timeout=0.01")),
        ):
            method, path, length = held
            sent = head(method, f"/api/v1{path}", f"X-API-Key: {ADMIN_KEY}", f"Content-Length: {length}")
            with ExitStack() as holding:

                def is_held(sent: bytes = sent, tried: tuple[str, str] = tried, holding: ExitStack = holding) -> bool:
                    """Holds again each time: the request that was tried may have been admitted before the held one."""
                    holding.enter_context(closing(connect(api.client.port, sent)))
                    return status(ADMIN_KEY, *tried) == "503"

                wait_until(is_held, what=f"{path} is held")
                assert status(other.key, *tried) in ("200", "201", "202")
            wait_until(lambda tried=tried: status(ADMIN_KEY, *tried) != "503", what=f"{path} is given back")


def test_without_descriptors_the_ports_wait_quietly_and_open_again(tmp_path: Path) -> None:
    """H3: one line when a port accepts no more clients and one when it does again, and no traceback."""
    settings = {
        "broker": "sqlite",
        "sqlite.path": str(tmp_path / "a.db"),
        "server.port": 0,
        "server.api_key": ADMIN_KEY,
    }
    with Program("serve", cwd=tmp_path, settings=settings) as program, ExitStack() as stack:
        pid = program.process.pid
        port = int(program.wait_for("server.opened")["url"].rpartition(":")[2])
        assert ApiClient(port).send("GET", "/healthz").status == 200
        assert program.get("/healthz")[0] == 200
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 4, before[1]))
        for _ in range(20):
            stack.enter_context(closing(connect(port)))
        program.wait_for("accept.stopped")
        for _ in range(5):
            stack.enter_context(closing(connect(program.port)))
        program.wait_for("accept.stopped", count=2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        program.wait_for("accept.resumed", count=2)
        assert ApiClient(port).send("GET", "/healthz").status == 200
        assert program.get("/healthz")[0] == 200
        assert {line["port"] for line in program.events("accept.stopped")} == {port, program.port}
        names = [line["event"] for line in program.logs()]  # fails for a line that is no JSON
        assert (names.count("accept.stopped"), names.count("accept.resumed")) == (2, 2)


def test_a_role_raises_its_limit_of_descriptors_and_handlers_keep_theirs(
    sqlite_setup: WorkerSetup,
) -> None:
    """H3: the soft limit becomes the hard one, but not that of the processes of handlers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, hard) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        worker = sqlite_setup.worker(variables={"UNRELATED": "1"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    sqlite_setup.enqueue("gated", "a")
    sqlite_setup.wait_logged("start", 1)
    [line] = sqlite_setup.handler_log("start")
    assert resource.prlimit(line.pid, resource.RLIMIT_NOFILE) == (low, hard)
