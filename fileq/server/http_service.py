"""The server as a service of a role: uvicorn in a thread of its own.

At a stop, streams are ended first, then open requests have STOP_S. What a kill -9 leaves: requests without an answer;
each of them took effect completely or not at all.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from fileq.config.http_settings import url_here
from fileq.core.errors import ConfigError
from fileq.core.events import Emit, ServerOpened, ServerWarned
from fileq.files.descriptor_limit import soft_limit
from fileq.server.client_address import Proxies
from fileq.server.connections import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_S,
    AbortableHttp,
    AbortableWebSocket,
    Connections,
    Listener,
)
from fileq.server.web_app import WebApp

STOP_S = 5
START_S = 20.0
AGAIN_S = 60.0
SWITCH_S = 0.0005
_REASONS_KEPT = 100


class _ToEvents(logging.Handler):
    """The log lines of uvicorn and asyncio, from warnings on, as events: one line each, without a traceback. The same
    one is reported once in AGAIN_S, with how often it was left out: strangers can cause them."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self._emit = emit
        self._reported: dict[str, tuple[float, int]] = {}  # when, and how often it was left out since then

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.report(record.getMessage().strip(), error)

    def report_context(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.report(context["message"], context.get("exception"))

    def report(self, message: str, error: BaseException | None = None) -> None:
        reason = (f"{message}: {error!r}" if error is not None else message)[:500]
        now_s = time.monotonic()
        then_s, left_out = self._reported.get(reason, (float("-inf"), 0))
        if now_s - then_s < AGAIN_S:
            self._reported[reason] = then_s, left_out + 1
            return
        if len(self._reported) >= _REASONS_KEPT:
            self._reported.clear()
        self._reported[reason] = now_s, 0
        self._emit(ServerWarned(f"{reason} ({left_out} more before)" if left_out else reason))


class _Server(uvicorn.Server):
    """uvicorn with a listener of our own."""

    def __init__(self, config: uvicorn.Config, connections: Connections, emit: Emit) -> None:
        super().__init__(config)
        self.server_state = connections
        self._connections = connections
        self._emit = emit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        [listening] = sockets or []
        all = self._connections
        listener = Listener(listening, lambda made: AbortableHttp(self.config, all, made), all, self._emit)
        self.servers = [listener]  # type: ignore[list-item]  # it has what uvicorn calls
        self.started = True


class HttpService:
    """`make` is called in the event loop and returns the application. Implements runtime's Service."""

    name = "server"

    def __init__(
        self,
        bind: str,
        port: int,
        make: Callable[[], WebApp],
        *,
        emit: Emit,
        is_read_only: bool,
        proxies: Sequence[str] = (),
    ) -> None:
        self._socket = listening(bind, port)
        self.port: int = self._socket.getsockname()[1]
        self._bind = bind
        self._make = make
        self._emit = emit
        self._is_read_only = is_read_only
        self._proxies = Proxies(proxies)
        self._server: uvicorn.Server | None = None
        self._app: WebApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = threading.Event()
        self._is_stopping = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    @property
    def url(self) -> str:
        return url_here(self._bind, self.port)

    def start(self) -> None:
        """Threads that read lists compete with the event loop, which gives up the interpreter for each part that it
        sends, and would wait up to 5 ms each time to get it back."""
        if self._thread.ident is None:
            sys.setswitchinterval(SWITCH_S)
            self._thread.start()
            self._is_ready.wait(START_S)
            self._emit(ServerOpened(self.url, self._is_read_only))

    def quiet(self) -> None:
        """Accepts no more connections and ends the streams; requests in progress continue."""
        self._is_stopping = True
        loop, app, server = self._loop, self._app, self._server
        if loop is None or app is None or server is None or loop.is_closed():
            return

        def stop() -> None:
            app.stop_streams()
            server.should_exit = True

        loop.call_soon_threadsafe(stop)

    def stop(self, timeout_s: float) -> None:
        self.quiet()
        if self._thread.ident is not None:
            self._thread.join(min(timeout_s, STOP_S + 2.0))
        else:
            self._socket.close()

    def hurry(self) -> None:
        self.quiet()
        if self._server is not None:
            self._server.force_exit = True

    def problem(self) -> str:
        return "stopping" if self._is_stopping else self._failure

    def is_turning(self) -> bool:
        return self._thread.is_alive() or self._is_stopping

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # also SystemExit, which uvicorn raises
            self._failure = repr(error)
            self._emit(ServerWarned(f"the server has ended: {error!r}"))
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._app = self._make()
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=AbortableHttp,
            ws=AbortableWebSocket,
            ws_max_size=64 << 10,
            ws_per_message_deflate=False,  # it would compress each event for each client
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        warnings = _ToEvents(self._emit)
        for name in ("uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [warnings], False
        logging.getLogger("uvicorn.access").disabled = True
        self._loop.set_exception_handler(warnings.report_context)
        # The other half of the descriptors is for the metrics port, the broker, files and handlers.
        connections = Connections(min(CONNECTIONS_MAX, soft_limit() // 2), self._proxies, warnings.report)
        self._server = _Server(config, connections, self._emit)
        if self._is_stopping:
            self._server.should_exit = True
        self._loop.call_soon(self._is_ready.set)
        await self._server.serve(sockets=[self._socket])


def listening(bind: str, port: int) -> socket.socket:
    """Raises ConfigError if the address can't be used."""
    try:
        found = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, number, _, address = found[0]
        opened = socket.socket(family, kind, number)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(2048)
        except BaseException:
            opened.close()
            raise
    except OSError as error:
        advice = "; choose another, or 0 for any" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"server.port is {port} on {bind}: {error.strerror}{advice}") from error
    opened.setblocking(False)
    return opened
