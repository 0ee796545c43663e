"""Clients that hold on to the port of the endpoints: how many there may be, for how long, and what probes notice."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from fileq.observe import http
from fileq.observe.http import MAX_CONNECTIONS, Endpoints
from tests.support.producer_setup import BrokerSetup
from tests.support.waiting import wait_until

CLIENTS = 1000


@contextmanager
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def slow_client(port: int, sent: bytes, source: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 10, source_address=(source, 0))
    client.sendall(sent)
    return client


def answer(port: int, sent: bytes) -> bytes:
    with closing(slow_client(port, sent)) as client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def sockets_of(pid: int) -> int:
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    return count


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_thousand_slow_clients_take_few_connections_and_probes_are_answered(
    on_sqlite: BrokerSetup,
) -> None:
    with many_descriptors(), on_sqlite.producer() as program, ExitStack() as stack:
        pid = program.process.pid
        before = sockets_of(pid)
        for number in range(CLIENTS):
            sent = (b"", b"GET /metrics HTTP/1.0\r\n", b"G")[number % 3]
            stack.enter_context(closing(slow_client(program.port, sent)))
            if number % 100 == 99:
                assert program.get("/healthz") == (200, '{"status": "ok"}\n')
                assert program.readiness() == (200, {"status": "ok"})
        assert sockets_of(pid) - before <= MAX_CONNECTIONS
        assert program.get("/metrics")[0] == 200


def test_the_address_with_the_most_connections_loses_one() -> None:
    """H3: one address can't take the connections of another."""
    with closing(Endpoints("127.0.0.1", 0, [], lambda: b"", request_timeout_s=60)) as endpoints, ExitStack() as stack:
        mine = stack.enter_context(closing(slow_client(endpoints.port, b"G")))
        theirs = [
            stack.enter_context(closing(slow_client(endpoints.port, b"G", "127.0.0.2")))
            for _ in range(2 * MAX_CONNECTIONS)
        ]
        wait_until(lambda: sum(not is_closed(one) for one in theirs) < MAX_CONNECTIONS, what="the most are open")
        assert not is_closed(mine)


def test_a_client_that_sends_a_byte_now_and_then_is_closed_at_its_deadline() -> None:
    with (
        closing(Endpoints("127.0.0.1", 0, [], lambda: b"", request_timeout_s=0.2)) as endpoints,
        closing(slow_client(endpoints.port, b"GET /")) as client,
    ):

        def is_closed_after_a_byte() -> bool:
            with suppress(ConnectionError):
                client.sendall(b"x")
            return is_closed(client)

        wait_until(is_closed_after_a_byte)


def test_a_client_that_does_not_read_its_answer_is_closed_at_its_deadline() -> None:
    body = b"x" * 50_000_000  # more than the buffers of both sides
    with closing(Endpoints("127.0.0.1", 0, [], lambda: body, request_timeout_s=0.2)) as endpoints:
        before = sockets_of(os.getpid())
        with closing(slow_client(endpoints.port, b"GET /metrics HTTP/1.0\r\n\r\n")):
            wait_until(lambda: sockets_of(os.getpid()) == before + 2)
            wait_until(lambda: sockets_of(os.getpid()) == before + 1)


def test_an_answer_on_its_way_is_not_cut_for_clients_that_send_nothing() -> None:
    body = b"x" * 50_000_000
    endpoints = Endpoints("127.0.0.1", 0, [], lambda: body, request_timeout_s=60)
    with closing(endpoints), ExitStack() as stack:
        reader = stack.enter_context(closing(slow_client(endpoints.port, b"GET /metrics HTTP/1.0\r\n\r\n")))
        received = reader.recv(100_000)
        for _ in range(3 * MAX_CONNECTIONS):
            stack.enter_context(closing(slow_client(endpoints.port, b"")))
        while block := reader.recv(1_000_000):
            received += block
        assert received.endswith(body[-100:])
        assert len(received) > len(body)


def test_without_a_client_the_server_sleeps_and_close_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_ms: list[float | None] = []

    class Poll:
        def __init__(self) -> None:
            self._poll = select.poll()

            self.register, self.unregister = self._poll.register, self._poll.unregister

        def poll(self, limit_ms: float | None) -> Any:
            limits_ms.append(limit_ms)
            return self._poll.poll(limit_ms)

    monkeypatch.setattr(http, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    endpoints = Endpoints("127.0.0.1", 0, [], lambda: b"")
    wait_until(lambda: limits_ms == [None], what="it waits without a time limit")
    with closing(slow_client(endpoints.port, b"G")):
        # The byte arrives with the connection, or after it.
        wait_until(lambda: limits_ms[1:], what="it waits for the deadline of the client")
        assert all(0 < (limit_ms or 0) <= 1000 * http.REQUEST_TIMEOUT_S for limit_ms in limits_ms[1:])
        endpoints.close()
    assert len(limits_ms) <= 3, "nothing but the client and close() has woken it"


def test_clients_that_have_not_sent_a_request_cost_no_threads() -> None:
    """H3: the accepting thread never waits for the end of another, so a probe behind hundreds of clients is served."""
    with closing(Endpoints("127.0.0.1", 0, [], lambda: b"", request_timeout_s=60)) as endpoints, ExitStack() as stack:
        before = threading.active_count()
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(closing(slow_client(endpoints.port, b"G")))
        assert answer(endpoints.port, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 200 ")
        assert threading.active_count() == before


def test_odd_requests_are_refused_and_the_next_is_answered() -> None:
    texts = iter([b"a 1\n"])
    with closing(Endpoints("127.0.0.1", 0, [], lambda: next(texts))) as endpoints:
        for sent, status in (
            (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * http.REQUEST_MAX, b"431"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
            (b"\r\n\r\n", b"405"),
            (b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
            (b"GET /metrics HTTP/1.1\r\n\r\n", b"500"),
            (b"GET /healthz HTTP/1.1\r\n\r\n", b"200"),
        ):
            assert answer(endpoints.port, sent).split()[1] == status
