"""The roles `serve` and `start`: the server alone, or beside producer and worker in one process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import uvicorn
from msgspec.structs import replace

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.commands.api_keys import LINK_MS, KeyStore
from fileq.commands.audit_entries import os_user
from fileq.config import Config, Loaded
from fileq.config.http_settings import (
    GUESSABLE,
    OUTSIDE_KEY,
    ServerSettings,
    is_guessable,
    is_loopback,
    is_outside_key,
    url_here,
)
from fileq.config.sources import read_password
from fileq.core.errors import ConfigError, FileqError
from fileq.core.events import Emit, ServerOpened, ServerWarned
from fileq.core.job import wall_clock_ms
from fileq.files.descriptor_limit import soft_limit
from fileq.handlers.extensions import load_before_enqueue
from fileq.runtime.observers import Observers
from fileq.runtime.reload import Reloader
from fileq.runtime.roles import FatalError, run_until_signal, start_broker
from fileq.server.connections import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_S,
    AbortableHttp,
    AbortableWebSocket,
    Connections,
    Listener,
)
from fileq.server.limits import Proxies
from fileq.server.services import Services
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
        self.server_state: Connections = connections
        self._emit = emit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        [listening], all = sockets or [], self.server_state
        listener = Listener(listening, lambda made: AbortableHttp(self.config, all, made), all, self._emit)
        self.servers = [listener]  # type: ignore[list-item]  # it has what uvicorn calls
        self.started = True


class ServerService:
    """The server as a service of a role. uvicorn is in a thread of its own.
    `login_name` is who opens the one-time link, which it prints if there is no key; "" for the user of this process.

    At a stop, streams are ended first, then open requests have STOP_S. What a kill -9 leaves: requests without an
    answer; each of them took effect completely or not at all.

    Implements runtime's Service."""

    name = "server"

    def __init__(
        self, config: Config, broker: FullBroker, *, emit: Emit, owns_broker: bool = False, login_name: str = ""
    ) -> None:
        settings = config.server
        self._keys, self._login_name = KeyStore(broker, wall_clock_ms), login_name or os_user()
        self._needs_link = _needs_link(config, self._keys)
        self._loop = asyncio.new_event_loop()
        try:
            self._services = Services(config, broker, self._loop, emit=emit)
            self._socket = listening(settings.bind, settings.port)
        except BaseException:
            self._loop.close()
            raise
        self._config = config
        self._broker = broker
        self._owns_broker = owns_broker
        self._emit = emit
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._is_ready = threading.Event()
        self._is_stopping = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    @property
    def url(self) -> str:
        return url_here(self._config.server.bind, self.port)

    def start(self) -> None:
        """Threads that read lists compete with the event loop, which gives up the interpreter for each part that it
        sends, and would wait up to 5 ms each time to get it back."""
        if self._thread.ident is None:
            self._services.start()
            sys.setswitchinterval(SWITCH_S)
            self._thread.start()
            self._is_ready.wait(START_S)
            self._emit(ServerOpened(self.url, self._config.server.read_only))
            if self._needs_link:
                with suppress(FileqError):  # the memory is full, or many links are unused: 'fileq login-link' says so
                    self._print_link(self._keys.create_link(self._login_name))

    def quiet(self) -> None:
        """Accepts no more connections and ends the streams; requests in progress continue."""
        self._is_stopping = True
        server = self._server
        if server is None or self._loop.is_closed():
            return

        def stop() -> None:
            self._services.stop_streams()
            server.should_exit = True

        self._loop.call_soon_threadsafe(stop)

    def stop(self, timeout_s: float) -> None:
        self.quiet()
        if self._thread.ident is not None:
            self._thread.join(min(timeout_s, STOP_S + 2.0))
        else:
            self._socket.close()
            self._loop.close()
        self._services.stop(min(timeout_s, 2.0))
        if self._owns_broker:
            self._broker.close()

    def hurry(self) -> None:
        self.quiet()
        if self._server is not None:
            self._server.force_exit = True

    def problem(self) -> str:
        return "stopping" if self._is_stopping else self._failure

    def is_turning(self) -> bool:
        return self._thread.is_alive() or self._is_stopping

    def _print_link(self, token: str) -> None:
        # Not an event: the link is a secret, and logs are kept.
        url = f"{self.url}{self._config.server.base_path}/login?once={token}"
        before, bold, after, end = ("\n", "\x1b[1m", "\x1b[0m", "\n\n") if sys.stdout.isatty() else ("", "", "", "\n")
        print(f"{before}  Open the console: {bold}{url}{after}")
        port = self.url.rpartition(":")[2]
        given = "" if port == str(ServerSettings().port) else f" --port {port}"
        print(f"  The link works once, within {LINK_MS // 60_000} minutes; 'fileq login-link{given}' prints a new one.")
        print("  For programs: fileq keys create NAME --scope admin", end=end, flush=True)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # also SystemExit, which uvicorn raises
            self._failure = repr(error)
            self._emit(ServerWarned(f"the server has ended: {error!r}"))
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        config = uvicorn.Config(
            WebApp(self._services),
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
        proxies = Proxies(self._config.server.trusted_proxies)
        connections = Connections(min(CONNECTIONS_MAX, soft_limit() // 2), proxies, warnings.report)
        self._server = _Server(config, connections, self._emit)
        if self._is_stopping:
            self._server.should_exit = True
        self._loop.call_soon(self._is_ready.set)
        await self._server.serve(sockets=[self._socket])


def listening(bind: str, port: int) -> socket.socket:
    """Raises ConfigError if the address can't be used."""
    try:
        [family, *_, address], *_ = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        takes_both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        opened = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=takes_both)
    except socket.gaierror as error:
        raise ConfigError(
            f"server.bind is {bind!r}, which is not an address of this machine: {error.strerror}"
        ) from error
    except OSError as error:
        advice = "; choose another, or 0 for any" if error.errno == errno.EADDRINUSE else ""
        reason = os.strerror(error.errno) if error.errno else error
        raise ConfigError(f"server.port is {port} on {bind}: {reason}{advice}") from error
    opened.setblocking(False)
    return opened


def run_serve(loaded: Loaded, read: Callable[[], Loaded], app_dir: str, login_name: str = "") -> int:
    """Serves the API until a signal arrives. `read` reads the configuration again. `app_dir` is where the modules of
    producer.imports are imported from."""
    config = loaded.config
    _check_secret_files(config)
    load_before_enqueue(config, app_dir=app_dir)  # the jobs of clients pass them, as those of a producer
    if config.broker_kind == "memory":
        raise ConfigError("broker is 'memory', which only 'fileq start' can serve; set sqlite or redis")
    impatient = replace(loaded, config=with_short_timeouts(config))
    with closing(Observers(config)) as observers, closing(start_broker(impatient, observers.emit, "server")) as broker:
        observers.watch_broker(broker)
        service = ServerService(config, broker, emit=observers.emit, login_name=login_name)
        run_until_signal([service], Reloader(loaded, read, observers.emit), observers, broker, FatalError())
    return 0


def server_beside(config: Config, worker_broker: FullBroker, emit: Emit, login_name: str = "") -> ServerService:
    """The server for a process that has a producer and a worker too, and the producer's functions with
    @fileq.before_enqueue. Its connections are its own, with shorter timeouts."""
    _check_secret_files(config)
    if config.broker_kind == "memory":
        return ServerService(config, worker_broker, emit=emit, login_name=login_name)
    broker = open_broker(with_short_timeouts(config))
    return ServerService(config, broker, emit=emit, owns_broker=True, login_name=login_name)


ANSWER_S = 0.8  # of the broker, so that a request is answered within a second


def with_short_timeouts(config: Config) -> Config:
    """The configuration for the connections of a server: a call fails rather than repeat or wait."""
    names = ("dial_timeout", "read_timeout", "write_timeout")
    short = {name: min(getattr(config.redis, name), ANSWER_S) for name in names}
    return replace(config, redis=replace(config.redis, max_retries=0, **short))


def _check_secret_files(config: Config) -> None:
    """What can be refused before the broker is asked."""
    settings = config.server
    if settings.api_key_file and not is_outside_key(_read_secret("api_key_file", settings.api_key_file)):
        raise ConfigError(f"server.api_key_file {settings.api_key_file!r} must hold {OUTSIDE_KEY}")
    if is_guessable(settings.username, _read_secret("password_file", settings.password_file)):
        raise ConfigError(f"the password in server.password_file {GUESSABLE}")


def _read_secret(name: str, path: str) -> str:
    """The content of the file that the setting names; "" if the setting is empty."""
    if not path:
        return ""
    try:
        content = read_password(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"server.{name} {path!r} cannot be read: {reason}") from error
    if not content:
        raise ConfigError(f"server.{name} {path!r} is empty; write the secret into it")
    return content


def _needs_link(config: Config, keys: KeyStore) -> bool:
    """Whether no one could log in. Raises ConfigError if the server would be open to other machines then."""
    settings = config.server
    keys.remove_stale()
    known = (key for key in keys.load().values() if not key.is_login and not key.is_expired(wall_clock_ms()))
    if settings.api_key or settings.api_key_file or any(known):
        return False
    if not is_loopback(settings.bind):
        raise ConfigError(
            f"server.bind is {settings.bind}, which other machines can reach, and there is no key; create one with "
            "'fileq keys create NAME --scope admin', or set server.api_key_file"
        )
    return not (settings.username or settings.auth_header)
