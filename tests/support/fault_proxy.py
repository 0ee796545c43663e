"""A TCP proxy in front of a real server that loses replies, resets, delays and holds requests back.

It knows where a request ends and how many replies came, nothing else of the protocol. A *flight* is what a connection
sends until everything it sent is answered: one round trip. (A pipeline that the client writes in several pieces may
count as several: the wire doesn't tell. redis-py cuts pipelines at 6 kB, a single command never.)

Two threads a connection, one each way; the last to leave closes both sockets, so that no thread ever uses a file
descriptor that belongs to somebody else by now.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

import hiredis

HOST = "127.0.0.1"
WAIT_S = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger

Match = bytes | Callable[[bytes], bool]


class Kind(Enum):
    DROP_REPLY = auto()
    CUT_REPLY = auto()
    STALL_REPLY = auto()
    RESET = auto()
    HOLD = auto()
    DELAY_REQUEST = auto()
    DELAY_REPLY = auto()


@dataclass
class Fault:
    """One planned fault; `fired` counts how often it has happened: assert it, or the test proves nothing."""

    kind: Kind
    match: Match
    nth: int = 1
    times: int | None = 1
    delay_s: float = 0.0
    after: int = 0
    fired: int = 0
    matched: int = 0

    def takes(self, request: bytes) -> bool:
        if not (self.match in request if isinstance(self.match, bytes) else self.match(request)):
            return False
        self.matched += 1
        return self.matched >= self.nth and (self.times is None or self.matched < self.nth + self.times)


class LeaseStatus(Fault):
    """A request caught on its way; the server does not know of it until `release`."""

    def __init__(self, match: Match, nth: int) -> None:
        super().__init__(Kind.HOLD, match, nth)
        self.caught = threading.Event()
        self.go = threading.Event()
        self.answered = threading.Event()
        self.connection: _Connection | None = None

    def wait_caught(self, timeout_s: float = WAIT_S) -> None:
        if not self.caught.wait(timeout_s):
            raise TimeoutError(f"no request came to be held within {timeout_s} s")

    def cut_client(self) -> None:
        """The client's connection ends now; the request stays on its way."""
        self.wait_caught()
        assert self.connection is not None
        self.connection.cut_client()

    def release(self, timeout_s: float = WAIT_S) -> None:
        """Delivers the request, whether its client is still there or not; returns when the server has answered."""
        self.wait_caught(timeout_s)
        self.go.set()
        if not self.answered.wait(timeout_s):
            raise TimeoutError(f"the server did not answer the released request within {timeout_s} s")


class FaultProxy:
    """`with FaultProxy(server.port) as proxy:` and connect to `proxy.port`.

    A match is bytes that the request contains or a predicate on its raw bytes. A fault acts on the `nth` request that
    matches, counted from now over all connections, and on the `times - 1` matching ones after it (None: all of them).
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.lock = threading.Lock()
        self.round_trips = 0
        self.swallowed = 0
        self.requests: list[bytes] = []
        self._faults: list[Fault] = []
        self._connections: set[_Connection] = set()
        self._is_black_hole = False
        self._is_closed = False
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.clear()
        connections = self._open()
        for connection in connections:
            connection.end(reset=False)
        for connection in connections:
            connection.join()

    # Faults

    def drop_reply_when(self, match: Match = b"", *, nth: int = 1, times: int | None = 1) -> Fault:
        """The server executes the request and answers; the client's connection is closed instead, nothing delivered."""
        return self._plan(Fault(Kind.DROP_REPLY, match, nth, times))

    def cut_reply_when(self, match: Match = b"", *, after: int, nth: int = 1, times: int | None = 1) -> Fault:
        """The client gets the first `after` bytes of the reply, then its connection is closed."""
        return self._plan(Fault(Kind.CUT_REPLY, match, nth, times, after=after))

    def stall_reply_when(self, match: Match = b"", *, after: int, nth: int = 1, times: int | None = 1) -> Fault:
        """The client gets the first `after` bytes of the reply, and nothing more on a connection that stays open."""
        return self._plan(Fault(Kind.STALL_REPLY, match, nth, times, after=after))

    def reset_when(self, match: Match = b"", *, nth: int = 1, times: int | None = 1) -> Fault:
        """The connection is reset (RST) and the request never reaches the server."""
        return self._plan(Fault(Kind.RESET, match, nth, times))

    def delay_requests(self, delay_s: float, match: Match = b"", *, times: int | None = None) -> Fault:
        return self._plan(Fault(Kind.DELAY_REQUEST, match, times=times, delay_s=delay_s))

    def delay_replies(self, delay_s: float, match: Match = b"", *, times: int | None = None) -> Fault:
        """The server executes at once, the client learns of it `delay_s` later."""
        return self._plan(Fault(Kind.DELAY_REPLY, match, times=times, delay_s=delay_s))

    def hold_when(self, match: Match = b"", *, nth: int = 1) -> LeaseStatus:
        """Catches one request; `release` on what this returns delivers it, also long after its client has gone."""
        hold = LeaseStatus(match, nth)
        self._plan(hold)
        return hold

    def clear(self) -> None:
        """No more faults; what is held stays held."""
        with self.lock:
            self._faults.clear()

    def reset_all(self) -> None:
        """Every open connection is reset (RST) now, as when the server's machine is gone and back."""
        for connection in self._open():
            connection.end(reset=True)

    def black_hole(self) -> None:
        """From now on nothing arrives on either side; connections stay open and new ones open."""
        with self.lock:
            self._is_black_hole = True

    def restore(self) -> None:
        """Ends the black hole; connections that lost something in it are reset."""
        with self.lock:
            self._is_black_hole = False
            lost = [connection for connection in self._connections if connection.has_lost_bytes]
        for connection in lost:
            connection.end(reset=True)

    # Counts

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def reset_counts(self) -> None:
        with self.lock:
            self.round_trips = 0
            self.requests.clear()

    # For the connections

    def note_flight(self) -> None:
        with self.lock:
            self.round_trips += 1

    def fault_for(self, request: bytes) -> Fault | None:
        """Notes the request; the first planned of the faults that take it."""
        with self.lock:
            self.requests.append(request)
            return next(iter([fault for fault in self._faults if fault.takes(request)]), None)

    def fire(self, fault: Fault) -> None:
        with self.lock:
            fault.fired += 1

    def swallows(self, connection: "_Connection") -> bool:
        """Whether what the connection just read is lost in the black hole."""
        with self.lock:
            if self._is_black_hole:
                connection.has_lost_bytes = True
                self.swallowed += 1
            return self._is_black_hole

    def forget(self, connection: "_Connection") -> None:
        with self.lock:
            self._connections.discard(connection)

    def _open(self) -> list["_Connection"]:
        with self.lock:
            return list(self._connections)

    def _plan(self, fault: Fault) -> Fault:
        with self.lock:
            self._faults.append(fault)
        return fault

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self.target_port))
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                client.close()
                continue
            connection = _Connection(self, client, server)
            with self.lock:
                self._connections.add(connection)
            connection.start()


class _Connection:
    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = _RequestReader()
        self._replies = _ReplyCounter()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._unanswered = 0
        self._is_in_flight = False
        self._dropping: Fault | None = None
        self._cutting: Fault | None = None
        self._reply_delay: Fault | None = None
        self._hold: LeaseStatus | None = None
        self.has_lost_bytes = False
        self._threads = [
            threading.Thread(target=self._carry, args=way, name="fault-proxy", daemon=True)
            for way in ((client, self._take_off), (server, self._land))
        ]
        self._running = len(self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)

    def end(self, reset: bool) -> None:
        """Ends both sides, from any thread; the client sees RST, or a plain end. The first call decides which."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            if self._hold is not None:
                self._hold.go.set()
            if reset:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            # Wakes the threads. The client's sending half only for a plain end: it would send FIN, where RST is wanted.
            _shut(self._client, socket.SHUT_RD if reset else socket.SHUT_RDWR)
            _shut(self._server, socket.SHUT_RDWR)

    def cut_client(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                _shut(self._client, socket.SHUT_RDWR)

    def _carry(self, source: socket.socket, handle: Callable[[bytes], bool]) -> None:
        """One way of the connection until its source ends or `handle` says so."""
        while True:
            chunk = _receive(source)
            is_lost = self._proxy.swallows(self)
            if is_lost and not chunk:
                self._ended.wait()  # an end is lost like everything else: the other side must not learn of it
            if not chunk or not (is_lost or handle(chunk)):
                break
        self.end(reset=False)
        with self._lock:
            self._running -= 1
            if self._running:
                return
            self._client.close()
            self._server.close()
        self._proxy.forget(self)

    # Client to server

    def _take_off(self, chunk: bytes) -> bool:
        requests = self._requests.feed(chunk)
        faults = [self._proxy.fault_for(request) for request in requests]
        with self._lock:
            if not self._is_in_flight:
                self._is_in_flight = True
                self._proxy.note_flight()
            self._unanswered += len(requests)
            # Before anything is forwarded: the whole flight goes unanswered, not only what comes after the match.
            self._dropping = self._dropping or _first(faults, Kind.DROP_REPLY)
            self._cutting = self._cutting or _first(faults, Kind.CUT_REPLY) or _first(faults, Kind.STALL_REPLY)
            self._reply_delay = self._reply_delay or _first(faults, Kind.DELAY_REPLY)
        return all(self._pass(request, fault) for request, fault in zip(requests, faults, strict=True))

    def _pass(self, request: bytes, fault: Fault | None) -> bool:
        if isinstance(fault, LeaseStatus):
            return self._keep(request, fault)
        if fault is not None and fault.kind is Kind.RESET:
            self._proxy.fire(fault)
            self.end(reset=True)
            return False
        if fault is not None and fault.kind is Kind.DELAY_REQUEST:
            self._proxy.fire(fault)
            if self._ended.wait(fault.delay_s):
                return False
        return _send(self._server, request)

    def _keep(self, request: bytes, hold: LeaseStatus) -> bool:
        with self._lock:
            self._hold = hold
            if self._ended.is_set():
                return False
        hold.connection = self
        self._proxy.fire(hold)
        hold.caught.set()
        hold.go.wait()
        # Until it is answered nobody looks at the client, whose end would overtake the request.
        return not self._ended.is_set() and _send(self._server, request) and hold.answered.wait(WAIT_S)

    # Server to client

    def _land(self, chunk: bytes) -> bool:
        replies = self._replies.feed(chunk)
        with self._lock:
            # Never below zero: messages of a subscription answer nothing.
            self._unanswered = max(0, self._unanswered - replies)
            is_landed = self._unanswered == 0 and not self._requests.is_midway
            self._is_in_flight = not is_landed
            dropping, hold = self._dropping, self._hold
            delay, self._reply_delay = self._reply_delay, None
        if dropping is not None:
            if is_landed:
                self._proxy.fire(dropping)
            return not is_landed
        if self._cutting is not None:
            _send(self._client, chunk[: self._cutting.after])
            self._proxy.fire(self._cutting)
            if self._cutting.kind is Kind.STALL_REPLY:
                self._ended.wait()
            return False
        if delay is not None:
            self._proxy.fire(delay)
            if self._ended.wait(delay.delay_s):
                return False
        is_delivered = _send(self._client, chunk)
        if hold is not None and is_landed:
            hold.answered.set()
        return is_delivered or hold is not None


class _RequestReader:
    """Cuts what a client sends into requests: arrays of bulk strings, or lines."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_midway(self) -> bool:
        return bool(self._rest)

    def feed(self, chunk: bytes) -> list[bytes]:
        data, start, requests = self._rest + chunk, 0, []
        while (end := self._end(data, start)) is not None:
            requests.append(data[start:end])
            start = end
        self._rest = data[start:]
        return requests

    @staticmethod
    def _end(data: bytes, start: int) -> int | None:
        """Where the request that begins at `start` ends; None if it is not all there."""
        at = data.find(b"\n", start) + 1
        if at == 0:
            return None
        parts = int(data[start + 1 : at]) if data[start : start + 1] == b"*" else 0
        for _ in range(parts):
            line_end = data.find(b"\n", at) + 1
            if line_end == 0:
                return None
            at = line_end + int(data[at + 1 : line_end]) + 2
        return at if at <= len(data) else None


class _ReplyCounter:
    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=self)

    def feed(self, chunk: bytes) -> int:
        """How many replies this completes; pushed messages are none."""
        self._reader.feed(chunk)
        count = 0
        while (reply := self._reader.gets()) is not self:
            count += not isinstance(reply, hiredis.PushNotification)
        return count


def _first(faults: list[Fault | None], kind: Kind) -> Fault | None:
    return next((fault for fault in faults if fault is not None and fault.kind is kind), None)


def _receive(source: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return source.recv(65536)
    return b""


def _send(target: socket.socket, data: bytes) -> bool:
    with contextlib.suppress(OSError):
        target.sendall(data)
        return True
    return False


def _shut(side: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(how)
