"""A TCP proxy in front of a real server that loses replies, resets connections, delays and holds requests.

It knows where a request ends and how many replies came, nothing else of the protocol. A *flight* is what a connection
sends until all of it is answered: one round trip. A pipeline that the client writes in several pieces may count as
several flights, because the bytes do not show it. redis-py splits pipelines at 6 kB, but never a single command.
"""

import socket
import threading
from typing import Self

from tests.support.proxy_connection import RESET_ON_CLOSE, ProxyConnection
from tests.support.proxy_faults import Fault, HeldRequest, Kind, Match

HOST = "127.0.0.1"


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
        self._connections: set[ProxyConnection] = set()
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
        """The server executes the request; the client's connection is closed without a reply."""
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
        """The server executes at once; the client gets the reply `delay_s` later."""
        return self._plan(Fault(Kind.DELAY_REPLY, match, times=times, delay_s=delay_s))

    def hold_when(self, match: Match = b"", *, nth: int = 1) -> HeldRequest:
        """Hold one request until `release` of the returned object, even after its client has gone."""
        hold = HeldRequest(match, nth)
        self._plan(hold)
        return hold

    def clear(self) -> None:
        """Cancel all faults; a held request stays held."""
        with self.lock:
            self._faults.clear()

    def reset_all(self) -> None:
        """Reset (RST) every open connection now, as after a restart of the server's machine."""
        for connection in self._open():
            connection.end(reset=True)

    def black_hole(self) -> None:
        """From now on nothing arrives on either side; connections stay open and new ones are accepted."""
        with self.lock:
            self._is_black_hole = True

    def restore(self) -> None:
        """End the black hole and reset the connections that lost data in it."""
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
        """Record the request and return the first planned fault that acts on it."""
        with self.lock:
            self.requests.append(request)
            return next(iter([fault for fault in self._faults if fault.takes(request)]), None)

    def fire(self, fault: Fault) -> None:
        with self.lock:
            fault.fired += 1

    def swallows(self, connection: ProxyConnection) -> bool:
        """Whether the black hole swallows what the connection has just read."""
        with self.lock:
            if self._is_black_hole:
                connection.has_lost_bytes = True
                self.swallowed += 1
            return self._is_black_hole

    def forget(self, connection: ProxyConnection) -> None:
        with self.lock:
            self._connections.discard(connection)

    def _open(self) -> list[ProxyConnection]:
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
            connection = ProxyConnection(self, client, server)
            with self.lock:
                self._connections.add(connection)
            connection.start()
