"""Which connection of the server is closed for another one, and what counts as the time of its client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from starlette.requests import Request

from fileq.server import connections
from fileq.server.connections import Connection, Connections
from fileq.server.limits import Proxies, pieces

ADDRESS = "192.0.2.1"


def connections_of(most: int) -> Connections:
    return Connections(most, Proxies([]), lambda warning: None)


async def opened(all: Connections, stack: ExitStack, address: str = ADDRESS) -> tuple[Connection, asyncio.Transport]:
    connection = all.admit(address)
    assert connection is not None
    mine, theirs = socket.socketpair()
    stack.enter_context(closing(theirs))
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=mine)
    stack.callback(transport.abort)
    all.opened(connection, transport)
    return connection, transport


def run_with_stack(run: Callable[[ExitStack], Awaitable[None]]) -> None:
    """Closes what the stack holds, and turns the loop until the transports have noticed."""

    async def all() -> None:
        with ExitStack() as stack:
            await run(stack)
        await turns()

    asyncio.run(all())


def stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop finds that an hour has passed in one of its turns."""
    loop = asyncio.get_running_loop()
    time: Callable[[], float] = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 3600)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_body_that_has_not_gone_on_for_the_longest_time_is_cut_first() -> None:
    """B1: a connection that waits for its body is closed for a new one; an idle one before it, a served one never."""

    async def run(stack: ExitStack) -> None:
        all = connections_of(8)  # 4 of one address
        found = [await opened(all, stack) for _ in range(4)]
        (served, t_served), (first, t_first), (second, t_second), (_, t_idle) = found
        all.served(served)
        for sender in (first, second, first):  # so the body of the first one has gone on
            all.sends(sender)
        for lost in (t_idle, t_second, t_first):
            assert not lost.is_closing()
            made = all.admit(ADDRESS)
            assert made is not None
            all.served(made)
            assert lost.is_closing()
        assert all.admit(ADDRESS) is None, "all of them are served"
        assert not t_served.is_closing()

    run_with_stack(run)


def test_idle_connections_of_many_addresses_cut_no_upload_of_one() -> None:
    """N4: the address with the most connections lost its uploads before a stranger's idle connections were closed."""

    async def run(stack: ExitStack) -> None:
        all = connections_of(8)
        uploads = [await opened(all, stack) for _ in range(3)]
        for connection, _ in uploads:
            all.sends(connection)
        idle = [(await opened(all, stack, f"198.51.100.{n}"))[1] for n in range(5)]
        for n in range(5):
            made = all.admit(f"203.0.113.{n}")
            assert made is not None
            all.served(made)
        assert [transport.is_closing() for transport in idle] == [True] * 5
        assert not any(transport.is_closing() for _, transport in uploads)
        assert all.admit("203.0.113.9") is not None
        assert uploads[0][1].is_closing(), "without an idle one, a body is cut"

    run_with_stack(run)


@pytest.mark.parametrize(
    ("others", "is_one"),
    [("2001:db8::{}", True), ("2001:db8:0:{}::1", False), ("::ffff:192.0.2.{}", False)],
    ids=["one network", "many networks", "IPv4 on a socket for IPv6"],
)
def test_the_addresses_of_a_network_of_ipv6_count_as_one(others: str, is_one: bool) -> None:
    """N4: one machine has 2**64 addresses of IPv6, each with a share of its own."""

    async def run() -> None:
        all = connections_of(8)  # 4 of one address
        found = [all.admit(others.format(n)) for n in range(1, 6)]
        assert all.admit("192.0.2.1") is not None
        kept = [one for one in found if one is not None and one in all._by_address.get(one.address, ())]
        assert len(kept) == (4 if is_one else 5)

    asyncio.run(run())


def test_a_stall_of_the_event_loop_is_not_the_time_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: the loop's own stall does not count against clients: neither for headers nor for answers."""

    async def run(stack: ExitStack) -> None:
        all = connections_of(8)
        _, idle = await opened(all, stack)
        reader, slow = await opened(all, stack)
        all.served(reader)
        slow.write(b"x" * (8 << 20))
        all._check_all()
        stall(monkeypatch)
        await turns()
        all._check_all()
        assert not idle.is_closing()
        assert not slow.is_closing()

    run_with_stack(run)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_request_that_the_loop_has_not_read_yet_is_not_late(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """B2: after a stall connections were cut whose request waited unread in the socket."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.0)

    async def run() -> None:
        all = connections_of(8)
        mine, theirs = socket.socketpair()
        with closing(mine), closing(theirs):
            mine.setblocking(False)
            connection = all.admit(ADDRESS)
            assert connection is not None
            connection.waiting = mine
            theirs.sendall(sent)
            all._check_all()
            assert (mine.fileno() >= 0) is bool(sent)

    asyncio.run(run())


def test_a_stall_of_the_event_loop_is_not_the_time_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: the loop's own stall does not count against clients: a body that arrived meanwhile is read."""

    async def run() -> None:
        messages = asyncio.Queue[Any]()
        request = Request({"type": "http", "method": "POST", "headers": []}, messages.get)

        async def read() -> bytes:
            return b"".join([piece async for piece in pieces(request, 60.0)])

        reading = asyncio.create_task(read())
        for part in (b"ab", b"cd"):
            await turns()
            stall(monkeypatch)
            messages.put_nowait({"type": "http.request", "body": part, "more_body": part == b"ab"})
        assert await reading == b"abcd"

    asyncio.run(run())
