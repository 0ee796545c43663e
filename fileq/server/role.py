"""The roles `serve` and `start`: the server alone, or beside producer and worker in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing

from msgspec.structs import replace

from fileq.brokers import open_broker
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker
from fileq.commands.api_keys import KeyStore
from fileq.commands.operator_name import os_user
from fileq.config import Config, Loaded
from fileq.config.http_settings import GUESSABLE, OUTSIDE_KEY, is_guessable, is_loopback, is_outside_key
from fileq.core.errors import ConfigError
from fileq.core.events import Emit
from fileq.runtime.observers import Observers
from fileq.runtime.reload import Reloader
from fileq.runtime.roles import FatalError, run_until_signal, start_broker
from fileq.server.audit import AuditLog
from fileq.server.background_work import BackgroundWork
from fileq.server.http_service import HttpService
from fileq.server.services import Services
from fileq.server.sessions import LINK_S, LoginLink
from fileq.server.signing import signer_of
from fileq.server.web_app import WebApp

ANSWER_S = 0.8  # of the broker, so that a request is answered within a second


class ServerService(HttpService):
    """The server with what it needs: its broker, its audit. `login_name` is who opens the one-time link; "" for the
    user of this process."""

    def __init__(
        self, config: Config, broker: FullBroker, *, emit: Emit, owns_broker: bool = False, login_name: str = ""
    ) -> None:
        link = _login_link(config, KeyStore(broker, wall_clock_ms), login_name or os_user())
        signer = signer_of(broker)
        self._audit = AuditLog(broker, emit, wall_clock_ms)
        self._background = BackgroundWork(config, broker, emit=emit, now_ms=wall_clock_ms)
        self._broker = broker if owns_broker else None
        self._link = link

        def make() -> WebApp:
            audit, background = self._audit, self._background
            return WebApp(
                Services(config, broker, signer, audit, background, emit=emit, now_ms=wall_clock_ms, link=link)
            )

        settings = config.server
        super().__init__(
            settings.bind,
            settings.port,
            make,
            emit=emit,
            is_read_only=settings.read_only,
            proxies=settings.trusted_proxies,
        )
        self._base_path = settings.base_path

    def start(self) -> None:
        self._audit.start()
        self._background.start()
        super().start()
        if self._link is not None and self._link.token:
            # Not an event: the link is a secret, and logs are kept.
            url = f"{self.url}{self._base_path}/login?once={self._link.token}"
            before, bold, after, end = (
                ("\n", "\x1b[1m", "\x1b[0m", "\n\n") if sys.stdout.isatty() else ("", "", "", "\n")
            )
            print(f"{before}  Open the console: {bold}{url}{after}")
            print(f"  The link works once, within {LINK_S // 60} minutes; 'fileq login-link' prints a new one.")
            print("  For programs: fileq keys create NAME --scope admin", end=end, flush=True)

    def stop(self, timeout_s: float) -> None:
        super().stop(timeout_s)
        self._background.stop(min(timeout_s, 2.0))
        self._audit.stop(min(timeout_s, 2.0))
        if self._broker is not None:
            self._broker.close()


def run_serve(loaded: Loaded, read: Callable[[], Loaded], login_name: str = "") -> int:
    """Serves the API until a signal arrives. `read` reads the configuration again."""
    config = loaded.config
    _check_secret_files(config)
    if config.broker_kind == "memory":
        raise ConfigError("broker is 'memory', which only 'fileq start' can serve; set sqlite or redis")
    impatient = replace(loaded, config=with_short_timeouts(config))
    with closing(Observers(config)) as observers, closing(start_broker(impatient, observers.emit)) as broker:
        observers.watch_broker(broker)
        service = ServerService(config, broker, emit=observers.emit, login_name=login_name)
        run_until_signal([service], Reloader(loaded, read, None, observers.emit), observers, broker, FatalError())
    return 0


def server_beside(config: Config, worker_broker: FullBroker, emit: Emit, login_name: str = "") -> ServerService:
    """The server for a process that has a worker too. Its connections are its own, with shorter timeouts."""
    _check_secret_files(config)
    if config.broker_kind == "memory":
        return ServerService(config, worker_broker, emit=emit, login_name=login_name)
    broker = open_broker(with_short_timeouts(config))
    return ServerService(config, broker, emit=emit, owns_broker=True, login_name=login_name)


def with_short_timeouts(config: Config) -> Config:
    """The configuration for the connections of a server: a call fails rather than repeat or wait."""
    redis = config.redis
    short = replace(
        redis,
        dial_timeout=min(redis.dial_timeout, ANSWER_S),
        read_timeout=min(redis.read_timeout, ANSWER_S),
        write_timeout=min(redis.write_timeout, ANSWER_S),
        max_retries=0,
    )
    return replace(config, redis=short)


def _check_secret_files(config: Config) -> None:
    """What can be refused before the broker is asked."""
    settings = config.server
    if settings.api_key_file and not is_outside_key(_read_secret("api_key_file", settings.api_key_file)):
        raise ConfigError(f"server.api_key_file {settings.api_key_file!r} must hold {OUTSIDE_KEY}")
    if is_guessable(settings.username, _read_secret("password_file", settings.password_file)):
        raise ConfigError(f"the password in server.password_file {GUESSABLE}")


def _read_secret(name: str, path: str) -> str:
    """The content of the file that the setting names; "" if the setting is empty."""
    from fileq.config.sources import read_password

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


def _login_link(config: Config, keys: KeyStore, maker: str) -> LoginLink | None:
    """A link to log in if there is no key. Raises ConfigError if the server would be open to other machines then."""
    settings = config.server
    keys.remove_stale()
    has_key = bool(settings.api_key or settings.api_key_file) or any(
        not key.is_login and not key.is_expired(wall_clock_ms()) for key in keys.load().values()
    )
    if has_key:
        return None
    if not is_loopback(settings.bind):
        raise ConfigError(
            f"server.bind is {settings.bind}, which other machines reach, and there is no key; make one by "
            "'fileq keys create NAME --scope admin', or set server.api_key_file"
        )
    has_other_login = bool(settings.username or settings.auth_header)
    return None if has_other_login else LoginLink(time.monotonic, maker)
