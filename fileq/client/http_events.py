"""The events of a queue from a server: GET /events, which sends them as server-sent events.

A thread reads the stream, because a read that times out can't be continued. A stream that breaks is opened once more
from the last event on; if that fails, get() raises and the caller subscribes again.
"""

from __future__ import annotations

import http.client
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from fileq.client.http_connection import HttpConnections, HttpReply
from fileq.client.http_problems import error_of
from fileq.core.errors import BrokerUnavailable, FileqError

PATH = "/events"
SILENCE_S = 60.0  # the server sends a comment more often than that
WAITING_MAX = 10_000  # events; then the server notices a slow client
_SLICE_S = 0.5


class HttpSubscription:
    """Implements Subscription. Begins when it is made."""

    def __init__(self, connections: HttpConnections) -> None:
        self._connections = connections
        self._events: queue.Queue[bytes] = queue.Queue(WAITING_MAX)
        self._last_id = ""
        self._error: FileqError | None = None
        self._is_closed = threading.Event()
        self._connection, answer = self._open()
        threading.Thread(target=self._run, args=(answer,), name="fileq events", daemon=True).start()

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            if self._error is not None and not self._is_closed.is_set():
                raise self._error from None
            return None

    def close(self) -> None:
        self._is_closed.set()
        with suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)  # ends the read of the thread, which closes it

    def _open(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self._last_id} if self._last_id else {})}
        connection, answer = self._connections.open_stream(PATH, (), headers, SILENCE_S)
        if answer.status == 200:
            return connection, answer
        found = {name.lower(): value for name, value in answer.getheaders()}
        try:
            raise error_of(HttpReply(answer.status, found, answer.read()))
        finally:
            connection.close()

    def _run(self, answer: http.client.HTTPResponse) -> None:
        try:
            while not self._is_closed.is_set():
                had_any = self._read(answer)
                if self._is_closed.is_set() or not had_any:
                    break
                self._connection, answer = self._open()
            self._error = BrokerUnavailable("the server has ended the stream of events")
        except FileqError as error:
            self._error = error
        finally:
            answer.close()
            self._connection.close()

    def _read(self, answer: http.client.HTTPResponse) -> bool:
        """Until the stream ends or breaks. Whether there was an event, so that it can be continued after it."""
        had_any = False
        with suppress(OSError, http.client.HTTPException, ValueError):
            for id, data in frames(iter(answer.readline, b"")):
                self._last_id = id or self._last_id
                if data.startswith(b'{"event":'):  # not `lag` and `reset`, which are about the stream itself
                    self._put(data)
                had_any = had_any or bool(id)
        self._connection.close()
        return had_any

    def _put(self, data: bytes) -> None:
        while not self._is_closed.is_set():
            with suppress(queue.Full):
                self._events.put(data, timeout=_SLICE_S)
                return


def frames(lines: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Id and data of each event in a stream. An event that is not complete at its end is dropped."""
    id, data = "", list[bytes]()
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            id = value.decode(errors="replace")
        elif name == b"data":
            data.append(value)
        elif not name and not line.strip():
            if data:
                yield id, b"\n".join(data)
            id, data = "", []
