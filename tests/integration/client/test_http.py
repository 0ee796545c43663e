"""A client of a server when something is wrong: lost answers, wrong keys, redirects, servers that are away or slow."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fileq
from fileq.client.address import server_address
from fileq.client.client import Client
from fileq.client.event_stream import EventStream
from fileq.client.http_transport import HttpConnections
from fileq.core.api_key import Scope
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from tests.support.api_client import ADMIN_KEY, ServedApi, served_api
from tests.support.http_proxy import HttpProxy
from tests.support.trial_tasks import Number, double
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("http")) as served:
        yield served


@pytest.fixture(scope="module")
def any_api(tmp_path_factory: pytest.TempPathFactory, broker_values: dict[str, Any]) -> Iterator[ServedApi]:
    """On each kind of broker, for what depends on it."""
    with served_api(tmp_path_factory.mktemp("any"), broker_values) as served:
        yield served


def client_at(port: int, key: str = ADMIN_KEY) -> Client:
    return Client(f"http://127.0.0.1:{port}", key=key)


def test_calls_whose_answers_are_lost_are_made_once(any_api: ServedApi) -> None:
    with HttpProxy(any_api.client.port) as proxy, client_at(proxy.port) as client:
        before = client.size("low")
        proxy.lose_next_answer_to(b"POST /api/v1/jobs ")
        handle = client.enqueue(double, Number(1))
        assert (handle.fate, handle.status().status, proxy.lost) == ("enqueued", "pending", 1)
        proxy.lose_next_answer_to(b"POST /api/v1/batches ")
        batch = client.batch()
        proxy.lose_next_answer_to(b"POST /api/v1/batches/")
        assert batch.seal() is True
        assert client.size("low") == before + 1
        proxy.lose_next_answer_to(b"DELETE ")
        assert handle.cancel() == "cancelled"
        assert (handle.cancel(), proxy.lost) == ("ended", 4)


def test_a_key_that_is_wrong_or_too_weak_is_an_error_that_names_the_reason(api: ServedApi) -> None:
    with client_at(api.client.port, "wrong") as client, pytest.raises(ConfigError, match="does not accept the key"):
        client.size("low")
    weak = api.client_with(Scope.ENQUEUE, allowed_types=["double"])
    with client_at(api.client.port, weak.key) as client:
        handle = client.enqueue(double, Number(1))
        assert handle.status().status == "pending", "it may look at a job that it made"
        with pytest.raises(TimeoutError):
            handle.wait(0.01)
        with pytest.raises(BrokerError, match="needs the scope operate"):
            handle.cancel()
        with pytest.raises(BrokerError, match="is for jobs of the types double only, not for type 'other'"):
            client.enqueue("other")
        with pytest.raises(BrokerError, match="needs the scope read"):
            client.events()
        with pytest.raises(BrokerError, match="needs the scope operate"):
            client.clear("low")
        with pytest.raises(BrokerError, match="needs the scope admin"):
            client.schedule("nightly", "@daily", "elsewhere")


def test_a_duplicate_of_a_job_that_the_key_may_not_read_is_not_taken_for_one_without_a_record(api: ServedApi) -> None:
    """Its handle said `unknown`, which counts as finished, and ResultExpired, while the job ran."""
    with client_at(api.client.port) as other:
        other.enqueue(double, Number(1), unique_key="theirs", delay="1h")
        other.enqueue(double, Number(1), id="theirs", delay="1h")
    weak = api.client_with(Scope.ENQUEUE, name="weak")
    with client_at(api.client.port, weak.key) as client:
        calls = [double.call(Number(2), unique_key="theirs"), double.call(Number(2), id="theirs")]
        mine = client.enqueue(double, Number(2), unique_key="mine", delay="1h")
        handles = [client.enqueue(double, call.payload, **call.options) for call in calls]  # type: ignore[arg-type]
        for handle in [*handles, *client.enqueue_many(calls)]:
            assert handle.fate == "duplicate"
            for use in (handle.status, partial(handle.wait, 1), handle.cancel, handle.retry):
                with pytest.raises(BrokerError, match="this needs the scope read"):
                    use()
        again = client.enqueue(double, Number(2), unique_key="mine")
        assert (again.fate, again.id, again.status().status) == ("duplicate", mine.id, "scheduled")
    strong = api.client_with(Scope.ENQUEUE, Scope.READ, name="strong")
    with client_at(api.client.port, strong.key) as client:
        assert client.enqueue(double, Number(2), unique_key="theirs").status().payload == Number(1)


def test_a_server_that_is_away_is_unavailable_and_a_wait_survives_it(api: ServedApi) -> None:
    with HttpProxy(api.client.port) as proxy, client_at(proxy.port) as client:
        handle = client.enqueue(double, Number(1))
        with ThreadPoolExecutor(1) as pool, client.events("job:cancelled") as events:
            waiting = pool.submit(handle.wait, 60)
            wait_until(lambda: any(b"/wait?" in request for request in proxy.requests), 30, "it waits")
            proxy.reset_all()
            with client_at(api.client.port) as direct:
                assert direct.job(handle.id).cancel() == "cancelled"
            with pytest.raises(fileq.JobCancelled):
                waiting.result(60)
            wait_until(lambda: _is_followed(client, events), 30, "events are followed again")
    with pytest.raises(BrokerUnavailable, match=rf"no answer from http://127.0.0.1:{proxy.port}: .*refused"):
        client_at(proxy.port).size("low")


def _is_followed(client: Client, events: EventStream) -> bool:
    """Each try cancels a job, because events during an outage are missing."""
    client.enqueue(double, Number(3)).cancel()
    return events.next_within(0.5) is not None


def test_a_stream_that_breaks_is_continued_after_its_last_event(any_api: ServedApi) -> None:
    port = any_api.client.port
    with HttpProxy(port) as proxy, client_at(proxy.port) as client, client_at(port) as direct:
        subscription = client.transport().subscribe()
        for _ in range(2):
            id = direct.enqueue(double, Number(1)).id
            event = subscription.get(30)
            assert event is not None
            assert id.encode() in event
            proxy.reset_all()
        wait_until(lambda: sum(b"Last-Event-ID: " in request for request in proxy.requests) == 2, 30, "it is continued")
        subscription.close()


def test_coroutines_wait_and_follow_events(api: ServedApi) -> None:
    async def use() -> None:
        async with fileq.AsyncClient(f"http://127.0.0.1:{api.client.port}", key=ADMIN_KEY) as client:
            handle = await client.enqueue(double, Number(1))
            async with client.events("job:cancelled") as events:
                waits = [asyncio.create_task(handle.wait()) for _ in range(12)]
                await handle.cancel()
                async for event in events:
                    assert event.job_id == handle.id
                    break
            for wait in waits:
                with pytest.raises(fileq.JobCancelled):
                    await wait
            given_up = asyncio.create_task((await client.enqueue(double, Number(2))).wait())
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up

    asyncio.run(use())
    names = ("fileq wait", "fileq events")
    wait_until(lambda: not [t for t in threading.enumerate() if t.name in names], 30, "all threads have ended")


def test_a_forked_process_uses_connections_of_its_own(api: ServedApi) -> None:
    with client_at(api.client.port) as client:
        before = client.size("low")
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if client.enqueue(double, Number(0)).fate == "enqueued" else 1)
            except BaseException:
                os._exit(2)
        client.enqueue(double, Number(1))
        assert os.waitpid(child, 0)[1] == 0
        assert client.size("low") == before + 2


# answers that no fileq server gives


@contextmanager
def answering(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers every connection so; yields its port and what it received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                    with context.wrap_socket(connection, server_side=True) if context else connection as peer:
                        received.append(peer.recv(65536))
                        peer.sendall(answer)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], received
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_redirects_are_refused_and_the_key_goes_nowhere_else() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (elsewhere, received):
        location = f"http://127.0.0.1:{elsewhere}/".encode()
        redirect = b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"
        not_followed = pytest.raises(BrokerError, match="redirects are not followed")
        with answering(redirect) as (port, _), client_at(port) as client, not_followed:
            client.size("low")
        assert received == []
        with client_at(elsewhere) as client, pytest.raises(BrokerError, match="is it a fileq server"):
            client.size("low")
        assert ADMIN_KEY.encode() in received[0]
        assert ADMIN_KEY.encode() not in received[0].split(b"\r\n")[0], "it is in no URL"


def test_variables_for_proxies_are_ignored(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with client_at(api.client.port) as client:
        assert client.size("high") == 0


def test_a_busy_server_is_tried_again_and_a_gateway_error_is_an_outage() -> None:
    busy = b'{"type":"urn:fileq:problem:rate-limited","title":"","status":429,"detail":"too many","instance":""}'
    head = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(busy)
    with answering(head + busy) as (port, received):
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                raise InterruptedError

        connections = HttpConnections(server_address(f"http://127.0.0.1:{port}", "k"), sleep=sleep)
        with pytest.raises(InterruptedError):
            connections.call("GET", "/stats")
        assert (pauses[0], len(received)) == (1.0, 3), "Retry-After is kept"
    html = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"
    is_away = pytest.raises(BrokerUnavailable, match="the server answered 502")
    with answering(html) as (port, _), client_at(port) as client, is_away:
        client.size("low")


@contextmanager
def tls_before(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """A proxy that ends TLS before a server, as nginx does; yields its port."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.transport.abort()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        listening.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        loop.run_until_complete(asyncio.sleep(0))  # the aborted connections are closed
        loop.close()


def test_certificates_are_verified(api: ServedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subject = ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *subject], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with answering(b"", context) as (port, received):
        refused = pytest.raises(BrokerError, match=rf"the certificate of https://localhost:{port} is refused")
        with Client(f"https://localhost:{port}", key="k") as client, refused:
            client.size("low")
        assert received == [], "the key was not sent"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with tls_before(api.client.port, context) as port, Client(f"https://localhost:{port}", key=ADMIN_KEY) as client:
        with client.events() as events:
            handle = client.enqueue(double, Number(4))
            assert next(iter(events)).job_id == handle.id
        assert handle.status().status == "pending"
