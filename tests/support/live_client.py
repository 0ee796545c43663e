"""Clients of live events for tests: Server-Sent Events and a WebSocket."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import wsproto
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, Request, TextMessage

from tests.support.api_client import API, ApiClient
from tests.support.waiting import wait_until


class Frame(NamedTuple):
    """One frame; a comment has no event."""

    id: str
    event: str
    data: Any


class SseClient:
    """Reads a stream in a thread of its own. `frames` has those with data; `is_open` is False after its end."""

    def __init__(self, api: ApiClient, headers: Mapping[str, str] | None = None, **query: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
        path = f"{API}/events?{urlencode(query)}"
        self.connection.request("GET", path, headers={"X-API-Key": api.key, **(headers or {})})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self._socket = self.connection.sock
        self.frames: list[Frame] = []
        self.last_id = ""
        self.is_open = True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: self.last_id, what="the first frame")

    def __enter__(self) -> "SseClient":
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(OSError):  # the server has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self.connection.close()

    def names(self) -> list[str]:
        return [frame.event for frame in self.frames]

    def wait_for(self, is_wanted: Callable[[Frame], bool]) -> Frame:
        return wait_until(lambda: next((frame for frame in list(self.frames) if is_wanted(frame)), None), 20)

    def wait_for_event(self, name: str) -> Frame:
        return self.wait_for(lambda frame: frame.event == name)

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            while line := self.answer.readline():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                    continue
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    self.frames.append(Frame(fields["id"], fields["event"], json.loads(fields["data"])))
                fields = {}
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass
        self.is_open = False


class SocketClient:
    """A WebSocket. `status` is that of a refusal, 0 if it was accepted."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._send(Request(host=f"127.0.0.1:{port}", target=path, extra_headers=extra))
        self.texts: list[str] = []
        self.status, self.close_code = -1, 0
        while self.status < 0:
            self._receive()
        if self.status:
            self.close()

    def next(self) -> Any:
        """The next event; None once the server has closed the connection."""
        while not self.texts and not self.close_code:
            self._receive()
        return json.loads(self.texts.pop(0)) if self.texts else None

    def close(self) -> None:
        self.socket.close()

    def _send(self, event: Any) -> None:
        self.socket.sendall(self.connection.send(event))

    def _receive(self) -> None:
        self.connection.receive_data(self.socket.recv(1 << 16) or None)
        for event in self.connection.events():
            if isinstance(event, AcceptConnection):
                self.status = 0
            elif isinstance(event, RejectConnection):
                self.status = event.status_code
            elif isinstance(event, TextMessage):
                self.texts.append(event.data)
            elif isinstance(event, CloseConnection):
                self.close_code = event.code
