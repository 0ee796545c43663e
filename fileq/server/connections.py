"""The connections of the server: how many there are, and how long a client may take. Strangers can open them.

There are at most `most` connections, and half as many from one address that is no trusted proxy; the addresses of a /64
network of IPv6 count as one. A new one gets in all the same: another one is closed for it. First one that has been
without a request for the longest time, then one whose body has not gone on for the longest time, then one whose client
does not read its answer; of those, one of the address with the most connections. A probe sends its request at once, so
idle clients do not keep it out.

A client that is slow to send the headers of a request, or to read an answer, is disconnected; so is one that sends many
frames on a WebSocket, of which the server uses none. Bodies have deadlines of their own (limits.py). Time in
which the event loop does not turn is not the clients': the clock of these deadlines stands still meanwhile. An
application disconnects a client at once by `scope["fileq.abort"]()`; closing a connection waits until everything is
sent, which may be never.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any

import h11
import wsproto
from h11._receivebuffer import ReceiveBuffer, blank_line_regex
from starlette.responses import StreamingResponse
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState

from fileq.core.events import AcceptResumed, AcceptStopped, Emit
from fileq.server.limits import Proxies, client_network

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn import Config

ABORT = "fileq.abort"
CONNECTIONS_MAX = 2048
HEADERS_S = 10.0  # from the connection, or from the first byte of a later request, to the end of the headers
HEAD_BYTES = 16 << 10  # of a request: its first line and its headers; also of the trailers after a body
HEAD_LINES = 101  # the first line and 100 headers
CHUNKS = 50  # of a body, in one turn of the event loop: h11 takes 20 us for each, however short
FRAMES_S = 10  # that a client may send on a WebSocket in a second: answers to pings, pings of its own, a close
KEEP_ALIVE_S = 30
READ_S = 30.0  # in such a time a client must read READ_BYTES of an answer, or all that is left of it
READ_BYTES = 30 << 10
UNREAD_MAX = 64 << 20  # bytes of answers that clients have not read yet, of all connections together
CHECK_S = 1.0
ACCEPTS = 1000  # in one turn of the event loop; a probe may be behind as many others
OPENED = 16
RETRY_S = 0.2
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Does(IntEnum):
    """What a connection does, in the order in which they are closed for others."""

    WAIT = 0  # without a request
    SEND = 1  # the client has not sent the whole body of its request
    GET_SERVED = 2


class Connection:
    """`address` is that of the client, of IPv6 its network. `idle_until_s` is when a connection without a request is
    closed; None while a request is served."""

    def __init__(self, address: str, idle_until_s: float) -> None:
        self.address = address
        self.does = Does.WAIT
        self.idle_until_s: float | None = idle_until_s
        self.transport: asyncio.Transport | None = None
        self.waiting: socket.socket | None = None  # while it has no transport
        self.unread_mark: tuple[float, int] | None = None  # when the answer was looked at, and what was unread

    @property
    def has_unseen(self) -> bool:
        """Whether something has arrived that the event loop has not seen yet."""
        return self.waiting is not None and bool(_first_bytes(self.waiting))

    @property
    def unread(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0


class _Address:
    """The connections of one address, by what they do, and in the order in which they began to."""

    def __init__(self) -> None:
        self.lines: tuple[dict[Connection, None], ...] = tuple({} for _ in Does)

    def __len__(self) -> int:
        return sum(map(len, self.lines))

    def __iter__(self) -> Iterator[Connection]:
        return chain(*self.lines)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self.lines[connection.does]


class Connections(ServerState):
    """Belongs to the event loop. uvicorn gives it to each of its protocols."""

    def __init__(self, most: int, proxies: Proxies, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._most = most
        self._most_of_one = max(1, most // 2)
        self._proxies = proxies
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        self._by_address: dict[str, _Address] = {}
        self._by_transport: dict[Any, Connection] = {}
        self._count = 0
        self._check: asyncio.TimerHandle | None = None
        self._now_s = 0.0  # counts the checks, so a turn of the event loop that takes long counts as one

    def admit(self, address: str) -> Connection | None:
        """A place for a new connection; None if each other one serves a request."""
        client = client_network(address)
        here = self._by_address.get(client, _Address())
        if len(here) >= self._most_of_one and address not in self._proxies:
            self._warn(f"{client} has {self._most_of_one} connections, the maximum: idle ones are closed for new ones")
            if not self._cut_one_of([here]):
                return None
        if self._count >= self._most:
            self._warn(f"{self._most} connections are open, the maximum: idle ones are closed for new ones")
            by_number = sorted(self._by_address.values(), key=len, reverse=True)
            if not self._cut_one_of(by_number):
                return None
        made = Connection(client, self._now_s + HEADERS_S)
        self._by_address.setdefault(client, _Address()).lines[made.does][made] = None
        self._count += 1
        if self._check is None:
            self._check = self._loop.call_later(CHECK_S, self._check_all)
        return made

    def opened(self, connection: Connection, transport: Any) -> None:
        connection.transport = transport
        if connection in self._by_address.get(connection.address, ()):
            self._by_transport[transport] = connection
        else:  # closed for another one before it was open
            transport.abort()

    def of(self, transport: Any) -> Connection | None:
        return self._by_transport.get(transport)

    def closed(self, connection: Connection) -> None:
        here = self._by_address.get(connection.address, _Address())
        if connection in here:
            del here.lines[connection.does][connection]
            self._count -= 1
        if not here:
            self._by_address.pop(connection.address, None)
        self._by_transport.pop(connection.transport, None)

    def served(self, connection: Connection) -> None:
        """A request has begun."""
        connection.idle_until_s = None
        self._move(connection, Does.GET_SERVED)

    def sends(self, connection: Connection) -> None:
        """A part of the body of the request has arrived, and there is more to come."""
        connection.idle_until_s = None
        self._move(connection, Does.SEND)

    def waits(self, connection: Connection, *, has_data: bool) -> None:
        """No request is being served. `has_data`: the client has sent a part of the next one, or what is left of the
        body of the last one, which its answer did not need."""
        if connection.idle_until_s is None:
            connection.idle_until_s = self._now_s + KEEP_ALIVE_S
            self._move(connection, Does.WAIT)
        if has_data:
            connection.idle_until_s = min(connection.idle_until_s, self._now_s + HEADERS_S)

    def close_waiting(self) -> None:
        """Closes the connections that have sent nothing yet."""
        for connection in [one for here in self._by_address.values() for one in here if one.waiting is not None]:
            self._cut(connection)

    def _move(self, connection: Connection, to: Does) -> None:
        """To the end of that line."""
        here = self._by_address.get(connection.address, _Address())
        if connection in here:
            del here.lines[connection.does][connection]
            here.lines[to][connection] = None
        connection.does = to

    def _cut_one_of(self, addresses: Sequence[_Address]) -> bool:
        """Of the first address that has one, but an idle one of any address before a body, and that before an answer:
        strangers with many addresses must not cut the uploads of one."""
        idle = map(self._first_idle, addresses)
        sending = (next(iter(here.lines[Does.SEND]), None) for here in addresses)
        unread = (one for here in addresses for one in here.lines[Does.GET_SERVED] if one.unread)
        found = next((one for one in chain(idle, sending, unread) if one is not None), None)
        if found is not None:
            self._cut(found)
        return found is not None

    def _first_idle(self, here: _Address) -> Connection | None:
        """Looks at each connection without a request only once, even if hundreds come at a time."""
        waiting = here.lines[Does.WAIT]
        while (found := next(iter(waiting), None)) is not None and found.has_unseen:
            self.served(found)  # until its bytes are read
        return found

    def _cut(self, connection: Connection) -> None:
        self.closed(connection)
        if connection.waiting is not None:
            self._loop.remove_reader(connection.waiting)
            connection.waiting.close()
        elif connection.transport is not None:
            connection.transport.abort()

    def _check_all(self) -> None:
        self._now_s += CHECK_S
        now_s, unread = self._now_s, []
        for connection in [one for here in self._by_address.values() for one in here]:
            size = connection.unread
            if size == 0:
                connection.unread_mark = None
            elif _is_stuck(connection, size, now_s):
                self._cut(connection)
                continue
            else:
                unread.append((size, id(connection), connection))
            is_late = connection.idle_until_s is not None and connection.idle_until_s <= now_s
            if is_late and size == 0 and not connection.has_unseen:
                self._cut(connection)
        left = sum(size for size, *_ in unread)
        for size, _, connection in sorted(unread, reverse=True):
            if left <= UNREAD_MAX:
                break
            self._cut(connection)
            left -= size
        self._check = self._loop.call_later(CHECK_S, self._check_all) if self._count else None


def _is_stuck(connection: Connection, size: int, now_s: float) -> bool:
    """An answer is written in parts, each when the client has read most of the one before: growth is progress."""
    mark = connection.unread_mark
    if mark is None or size > mark[1] or (now_s - mark[0] >= READ_S and mark[1] - size >= READ_BYTES):
        connection.unread_mark = now_s, size
        return False
    return now_s - mark[0] >= READ_S


class Listener:
    """Accepts connections, as asyncio's server does, but within the limits and without a traceback for each failure.

    A connection gets a transport and a protocol after its first byte: one that sends nothing costs next to nothing. Few
    get them in one turn of the event loop, so that turns stay short when hundreds of clients come at once. Probes are
    the first."""

    def __init__(
        self, listening: socket.socket, make: Callable[[Connection], asyncio.Protocol], all: Connections, emit: Emit
    ) -> None:
        self._socket = listening
        self._port: int = listening.getsockname()[1]
        self._make = make
        self._all = all
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next: deque[tuple[Connection, socket.socket]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._is_stopped = False  # for want of descriptors or memory
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._all.close_waiting()

    async def wait_closed(self) -> None:
        """For uvicorn: close() has done everything."""

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                if self._is_stopped:  # now all that had to wait are in
                    self._is_stopped = False
                    self._emit(AcceptResumed(self._port))
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._stop(error)
                    return
                continue  # the client has gone already
            accepted.setblocking(False)
            connection = self._all.admit(address[0])
            if connection is None:
                accepted.close()
                continue
            connection.waiting = accepted
            self._loop.add_reader(accepted, self._begin, connection, accepted)

    def _begin(self, connection: Connection, accepted: socket.socket) -> None:
        """The client has sent something, or has gone."""
        self._loop.remove_reader(accepted)
        if not self._next:
            self._loop.call_soon(self._open_some)
        if b"/healthz " in _first_bytes(accepted).partition(b"\r\n")[0]:
            self._next.appendleft((connection, accepted))
        else:
            self._next.append((connection, accepted))

    def _open_some(self) -> None:
        for _ in range(min(OPENED, len(self._next))):
            connection, accepted = self._next.popleft()
            if accepted.fileno() < 0:  # closed for another one meanwhile
                continue
            connection.waiting = None
            self._all.served(connection)  # until its bytes are read
            task = self._loop.create_task(self._open(connection, accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._next:
            self._loop.call_soon(self._open_some)

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(connection), accepted)
        except OSError:
            self._all.closed(connection)
            accepted.close()

    def _stop(self, error: OSError) -> None:
        """The kernel reports the waiting clients again and again, so it is not asked for a while."""
        if not self._is_stopped:
            self._is_stopped = True
            self._emit(AcceptStopped(self._port, error.strerror or repr(error)))
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(RETRY_S, self._loop.add_reader, self._socket, self._accept)


def _first_bytes(accepted: socket.socket) -> bytes:
    """What the client has sent; they are read again later."""
    try:
        return accepted.recv(100, socket.MSG_PEEK)
    except OSError:  # nothing yet, or it has gone
        return b""


class _LimitedBuffer(ReceiveBuffer):
    """Refuses long heads before h11 takes them apart, which takes 15 us for each header."""

    has_refused = False

    def maybe_extract_lines(self) -> list[bytearray] | None:
        data = self._data
        if not data.startswith((b"\n", b"\r\n")):  # else there are no lines
            end = blank_line_regex.search(data, 0, HEAD_BYTES)
            size = end.start() + 1 if end is not None else len(data)
            if size > HEAD_BYTES or data.count(b"\n", 0, size) > HEAD_LINES:
                self.has_refused = True
                raise h11.RemoteProtocolError("the headers are too long", error_status_hint=431)
        return super().maybe_extract_lines()


class _StrictParser(h11.Connection):
    """Refuses a request with a long head, and one whose length two servers could read in different ways: with both
    Content-Length and Transfer-Encoding, or with Transfer-Encoding in HTTP/1.0. h11 itself refuses differing
    lengths."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self.head = self._receive_buffer = _LimitedBuffer()
        self.chunks_left = CHUNKS

    def next_event(self) -> Any:
        if self.chunks_left == 0:
            return h11.PAUSED
        event = super().next_event()
        if isinstance(event, h11.Data):
            self.chunks_left -= 1
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("the length of the body is ambiguous")
        return event


class _Flow(FlowControl):
    """Reads nothing more while what has been read is not parsed."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class AbortableHttp(H11Protocol):
    def __init__(self, config: Config, connections: Connections, connection: Connection) -> None:
        super().__init__(config, connections, {})
        self.conn: _StrictParser = _StrictParser()
        self._all = connections
        self._connection = connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = _with_abort(self.app, transport)
        self.flow: _Flow = _Flow(transport)
        self._all.opened(self._connection, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.closed(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note(has_data=True)

    def handle_events(self) -> None:
        """Leaves the rest of many chunks to later turns of the event loop."""
        super().handle_events()
        if self.conn.chunks_left == 0 and not self.flow.is_held:
            self.flow.is_held = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.conn.chunks_left, self.flow.is_held = CHUNKS, False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()
            self._note(has_data=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(has_data=False)

    def send_400_response(self, msg: str) -> None:
        """Also 431. A connection whose answer has begun is only closed."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
        elif self.conn.head.has_refused:
            text = f"A request has at most {HEAD_LINES - 1} headers, and {HEAD_BYTES:,} bytes before its body."
            headers = [("Content-Type", "text/plain; charset=utf-8"), ("Connection", "close")]
            for event in (h11.Response(status_code=431, headers=headers), h11.Data(text.encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _note(self, *, has_data: bool) -> None:
        is_served = self.cycle is not None and not self.cycle.response_complete
        if is_served and self.conn.their_state is h11.SEND_BODY:
            self._all.sends(self._connection)
        elif is_served or isinstance(self.transport.get_protocol(), AbortableWebSocket):
            self._all.served(self._connection)
        else:
            self._all.waits(self._connection, has_data=has_data)


class _FewFrames(wsproto.WSConnection):
    """Takes FRAMES_S frames apart in a second, and no more of them: each costs about 20 us, and 6 bytes are one."""

    is_flooded = False

    def __init__(self, time: Callable[[], float]) -> None:
        super().__init__(wsproto.ConnectionType.SERVER)
        self._time = time
        self._since_s = time()
        self._left = FRAMES_S

    def events(self) -> Generator[wsproto.events.Event, None, None]:
        for event in super().events():
            now_s = self._time()
            if now_s - self._since_s >= 1.0:
                self._since_s, self._left = now_s, FRAMES_S
            if self._left == 0:
                self.is_flooded = True
                return
            self._left -= 1
            yield event


class AbortableWebSocket(WSProtocol):
    """Continues the connection of an AbortableHttp, whose place it keeps. Disconnects a client that sends more frames
    than an honest one has reason to, or any before its request is answered: they would be kept until then."""

    def __init__(self, config: Config, server_state: Connections, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._all = server_state
        self.conn: _FewFrames = _FewFrames(self.loop.time)
        self._is_requested = False

    def data_received(self, data: bytes) -> None:
        if self._is_requested and not self.handshake_complete:
            self.transport.abort()
            return
        self._is_requested = True  # the first data are the head of the request
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.is_flooded:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = _with_abort(self.app, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if (connection := self._all.of(self.transport)) is not None:
            self._all.closed(connection)
        super().connection_lost(exc)


def _with_abort(app: Any, transport: asyncio.Transport) -> Any:
    inner: ASGIApp = app

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT] = transport.abort
        await inner(scope, receive, send)

    return call


async def until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all until one has ended, and cancels the others. An error is raised, unless the client has gone."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not isinstance(task.exception(), OSError):
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Streamed(StreamingResponse):
    """Sends the parts until there are no more or the client leaves, then calls `end`. A part that raises OSError ends
    the connection."""

    def __init__(self, parts: AsyncIterator[bytes], end: Callable[[], None], **options: Any) -> None:
        super().__init__(parts, **options)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_first(self.stream_response(send), until_gone(receive, "http.disconnect"))
        finally:
            self._end()


async def until_gone(receive: Callable[[], Awaitable[Message]], kind: str) -> None:
    """Ignores what the client sends."""
    while (await receive())["type"] != kind:
        pass
