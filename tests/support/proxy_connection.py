"""One connection through FaultProxy: two threads, one for each direction.

The thread that ends last closes both sockets, so that no thread ever uses a file descriptor that the system has given
to another socket.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.proxy_faults import WAIT_S, Fault, HeldRequest, Kind
from tests.support.resp_framing import ReplyCounter, RequestReader

if TYPE_CHECKING:
    from tests.support.fault_proxy import FaultProxy

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger


class ProxyConnection:
    def __init__(self, proxy: "FaultProxy", client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = RequestReader()
        self._replies = ReplyCounter()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._unanswered = 0
        self._is_in_flight = False
        self._dropping: Fault | None = None
        self._cutting: Fault | None = None
        self._reply_delay: Fault | None = None
        self._hold: HeldRequest | None = None
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
        """End both sides, from any thread; the client gets RST or a plain end. The first call decides which."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            if self._hold is not None:
                self._hold.go.set()
            if reset:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            # This wakes the threads. Shutting the client's sending half would send FIN before the RST.
            _shut(self._client, socket.SHUT_RD if reset else socket.SHUT_RDWR)
            _shut(self._server, socket.SHUT_RDWR)

    def cut_client(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                _shut(self._client, socket.SHUT_RDWR)

    def _carry(self, source: socket.socket, handle: Callable[[bytes], bool]) -> None:
        """Pass on one direction until its source ends or `handle` returns False."""
        while True:
            chunk = _receive(source)
            is_lost = self._proxy.swallows(self)
            if is_lost and not chunk:
                self._ended.wait()  # the black hole swallows the end too: the other side must not notice it
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
            # Set before anything is forwarded, so that no reply of the flight is delivered.
            self._dropping = self._dropping or _first(faults, Kind.DROP_REPLY)
            self._cutting = self._cutting or _first(faults, Kind.CUT_REPLY) or _first(faults, Kind.STALL_REPLY)
            self._reply_delay = self._reply_delay or _first(faults, Kind.DELAY_REPLY)
        return all(self._pass(request, fault) for request, fault in zip(requests, faults, strict=True))

    def _pass(self, request: bytes, fault: Fault | None) -> bool:
        if isinstance(fault, HeldRequest):
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

    def _keep(self, request: bytes, hold: HeldRequest) -> bool:
        with self._lock:
            self._hold = hold
            if self._ended.is_set():
                return False
        hold.connection = self
        self._proxy.fire(hold)
        hold.caught.set()
        hold.go.wait()
        # Wait for the reply before reading from the client again: the client's end would overtake the request.
        return not self._ended.is_set() and _send(self._server, request) and hold.answered.wait(WAIT_S)

    # Server to client

    def _land(self, chunk: bytes) -> bool:
        replies = self._replies.feed(chunk)
        with self._lock:
            # Never below zero: the messages of a subscription are no replies.
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
