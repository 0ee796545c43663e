"""A proxy between a client and a server of the REST API that loses answers and connections when a test says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class HttpProxy:
    """Use it in a `with`. `requests` are the beginnings of what clients sent."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_lost: Callable[[bytes], bool] = lambda request: False
        self.requests: list[bytes] = []
        self.lost = 0

    def lose_next_answer_to(self, beginning: bytes) -> None:
        """The server gets the next request that begins so, and its answer is dropped with the connection."""
        before = self.lost
        self._is_lost = lambda request: self.lost == before and request.startswith(beginning)

    def reset_all(self) -> None:
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> HttpProxy:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listening.close()
        self.reset_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            with self._lock:
                self._open |= {client, server}
            losing = threading.Event()
            answers = threading.Thread(target=self._answers, args=(server, client, losing), daemon=True)
            answers.start()
            with suppress(OSError):
                while request := client.recv(65536):
                    self.requests.append(request[:1000])
                    if self._is_lost(request):
                        losing.set()
                    server.sendall(request)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            answers.join(10)
            with self._lock:
                self._open -= {client, server}

    def _answers(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while answer := server.recv(65536):
                if losing.is_set():
                    self.lost += 1
                    break
                client.sendall(answer)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
