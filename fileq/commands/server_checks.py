"""Checks of `fileq doctor` that the console and other commands use too: what `fileq serve` needs (its address, a key,
names, proxies, uploads), the port of /metrics, webhooks and schedules. Sends no request but GET /healthz.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_network

from fileq.brokers.protocol import FullBroker
from fileq.commands.api_keys import KeyStore
from fileq.commands.untaken_files import scans_outside_roots
from fileq.config import Config, Loaded
from fileq.config.http_settings import GUESSABLE, OUTSIDE_KEY, host_here, is_guessable, is_loopback, is_outside_key
from fileq.core.api_key import StoredKey
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.core.job import wall_clock_ms
from fileq.files.paths import advice_for, directory_problem
from fileq.webhooks.store import WebhookStore, definition_problems
from fileq.webhooks.subscriptions import Subscriptions

SOON_MS = 14 * 86_400_000  # a key that expires within this time is worth a note, unless its whole life is short
_KEY_ADVICE = "'fileq keys create NAME --scope admin', or set server.api_key_file"
_TIMEOUT_S = 1.0  # of GET /healthz
_TZDATA_ADVICE = "run pip install tzdata, or install the system's time zones"


def is_configured(loaded: Loaded) -> bool:
    """Whether a source sets anything about the server."""
    return any(loaded.is_set(key) for key in loaded.origins if key.startswith("server."))


def check_server(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    settings = loaded.config.server
    yield _address(settings.bind, settings.port)
    yield from _keys(loaded, open_it)
    yield from _secret_file("api_key_file", settings.api_key_file)
    yield from _secret_file("password_file", settings.password_file, settings.username)
    yield from _network(loaded.config)
    yield from _uploads(loaded)


def _address(bind: str, port: int) -> Finding:
    if port == 0:
        return sound("server", f"any free port on {bind}")
    error = bind_error(bind, port)
    if error is None:
        return sound("server", f"{port} on {bind} is free")
    if answers_health(bind, port, "X-Request-Id"):
        return sound("server", f"{port} on {bind} is served by a running fileq")
    return wrong("server", f"{port} on {bind}: {error.strerror or error}", "set server.port or server.bind")


def _keys(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    settings = loaded.config.server
    if settings.api_key and loaded.origins["server.api_key"].layer == "file":
        yield unknown("server key", "server.api_key is in the configuration file", "prefer server.api_key_file")
    catalog = catalog_of(loaded.config, open_it)
    keys = KeyStore(catalog).load() if catalog is not None else {}
    valid = [key for key in keys.values() if not key.is_login and not key.is_expired(wall_clock_ms())]
    yield from expiring(valid)
    has_outside = bool(settings.api_key or settings.api_key_file)
    if valid or has_outside:
        yield sound("server key", f"{len(valid)} on the broker{', one configured' if has_outside else ''}")
    elif not is_loopback(settings.bind):
        yield wrong("server key", f"no keys, and other machines can reach {settings.bind}", _KEY_ADVICE)
    else:
        yield unknown("server key", "no keys; the server prints a one-time login link", _KEY_ADVICE)


def expiring(keys: Iterable[StoredKey]) -> Iterator[Finding]:
    """A note for each key that expires within SOON_MS and has less than a quarter of its life left."""
    for key in keys:
        left_ms, life_ms = key.expires_ms - wall_clock_ms(), key.expires_ms - key.created_ms
        if key.expires_ms and left_ms < min(SOON_MS, life_ms / 4):
            advice = "create a new one, switch its program over, then revoke the old one"
            yield unknown("server key", f"{key.name!r} expires in {left_ms / 86_400_000:.1f} days", advice)


def _secret_file(name: str, path: str, username: str = "") -> Iterator[Finding]:
    from fileq.config.sources import read_password

    if not path:
        return
    try:
        content, mode = read_password(path), os.stat(path).st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        yield wrong(f"server {name}", f"{path}: {reason}", "create it, readable by this user")
        return
    if not content:
        yield wrong(f"server {name}", f"{path} is empty", "write the secret into it")
    elif name == "api_key_file" and not is_outside_key(content):
        yield wrong(f"server {name}", f"{path} must hold {OUTSIDE_KEY}", "write a different one into the file")
    elif username and is_guessable(username, content):
        yield wrong(f"server {name}", f"the password {GUESSABLE}", "write a different one into the file")
    elif mode & stat.S_IROTH:
        yield unknown(f"server {name}", f"every user on this machine can read {path}", f"chmod o-r {path}")
    else:
        yield sound(f"server {name}", path)


def _network(config: Config) -> Iterator[Finding]:
    settings = config.server
    if settings.auth_header and any(ip_network(one).prefixlen == 0 for one in settings.trusted_proxies):
        detail = f"server.trusted_proxies has all addresses: any client can choose its name in {settings.auth_header}"
        yield wrong("server proxy", detail, "list only the proxy's addresses")
    if is_loopback(settings.bind):
        return
    if not settings.trusted_proxies:
        advice = "put a TLS proxy in front of it and add its address to server.trusted_proxies (docs/production.md)"
        yield unknown("server TLS", f"http on {settings.bind}: keys are sent unencrypted", advice)
    else:
        yield sound("server TLS", f"left to the proxies {', '.join(settings.trusted_proxies)}")
    if not settings.hosts:
        yield unknown("server hosts", "only requests to an IP address are accepted", "add its names to server.hosts")


def _uploads(loaded: Loaded) -> Iterator[Finding]:
    directory = loaded.config.server.upload_dir
    if not directory:
        return
    if what := directory_problem(os.fsencode(directory)):
        yield wrong("server uploads", f"{directory} {what}", f"{advice_for(what)}, or change server.upload_dir")
    elif not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        yield wrong("server uploads", f"{directory} is not writable", "grant this user w and x on it")
    elif not _is_below(directory, loaded.config.producer.scan_dir):
        advice = "set server.upload_dir to a directory below it, unless another producer watches this one"
        yield unknown("server uploads", f"{directory} is not below producer.scan_dir", advice)
    else:
        yield sound("server uploads", f"{directory} is writable")


def _is_below(directory: str, root: str) -> bool:
    found, above = os.path.realpath(directory), os.path.realpath(root)
    return os.path.commonpath([found, above]) == above


def check_port(loaded: Loaded) -> Iterator[Finding]:
    bind, port = loaded.config.observability.metrics_bind, loaded.config.observability.metrics_port
    if port == 0:
        yield sound("metrics port", "any free port")
        return
    error = bind_error(bind, port)
    in_use = error is not None and error.errno == errno.EADDRINUSE
    if error is None:
        yield sound("metrics port", f"{port} on {bind} is free")
    elif in_use and answers_health(bind, port, "Server", "fileq"):
        yield sound("metrics port", f"{port} on {bind} is served by a running fileq")
    elif in_use and not loaded.is_set("observability.metrics_port"):
        yield unknown("metrics port", f"{port} on {bind} is in use; a free port is chosen at start")
    else:
        advice = "set observability.metrics_port to another, or to 0"
        yield wrong("metrics port", f"{port} on {bind}: {error.strerror or error}", advice)


def bind_error(bind: str, port: int) -> OSError | None:
    """Why this address can't be listened on; None if it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind((bind, port))
            trial.listen()
    except OSError as error:
        return error
    return None


def answers_health(bind: str, port: int, header: str, start: str = "") -> bool:
    """Whether a server there answers /healthz with this header, whose value begins like this."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host_here(bind), port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        found = connection.getresponse().getheader(header)
        return found is not None and found.startswith(start)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def check_webhooks(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    from fileq.webhooks.sender import literal_problem

    config = loaded.config
    catalog = catalog_of(config, open_it)
    if catalog is None:
        return  # the check of the broker reports it
    store = WebhookStore(catalog, config.webhooks, wall_clock_ms)
    known = store.load()
    problems = [*store.problems, *Subscriptions(config.paths, "").set(known.values())]
    for one in known.values():
        problems += definition_problems(one.webhook, config.webhooks, config.worker.priorities)
        if problem := literal_problem(one.webhook.url, config.webhooks):
            problems.append(f"the url of webhook {one.webhook.name!r} {problem}")
        try:
            one.secrets(wall_clock_ms())
        except ConfigError as error:
            problems += error.problems
        if one.state.disabled:
            problems.append(f"webhook {one.webhook.name!r} is disabled: {one.state.disabled}")
    for problem in problems:
        yield wrong("webhooks", problem, "'fileq webhook list' shows the definitions")
    if known and not problems:
        yield sound("webhooks", ", ".join(known))


def catalog_of(config: Config, open_it: Callable[[], FullBroker]) -> FullBroker | None:
    """The broker, if its documents can be read without creating its database."""
    if config.broker_kind == "memory" or (config.broker_kind == "sqlite" and not os.path.exists(config.sqlite.path)):
        return None
    try:
        broker = open_it()
        broker.catalog_revision("webhooks")
    except (BrokerError, ConfigError):
        return None
    return broker


def check_schedules(config: Config) -> Iterator[Finding]:
    """Zones with other names were refused when the configuration was loaded."""
    if not config.schedules:
        return
    from fileq.core.schedule import next_slot

    for name, settings in config.schedules.items():
        try:
            next_slot(settings.definition, now_ms=0)
        except ValueError as error:
            yield wrong("schedules", f"{name}: {error}", "fix it in the configuration")
    yield from (unknown("schedules", warning) for warning in scans_outside_roots(config))
    try:
        import tzdata  # type: ignore[import-untyped]
    except ImportError:
        yield wrong("time zones", "the package tzdata is missing", _TZDATA_ADVICE)
        return
    yield sound("schedules", f"{len(config.schedules)} in the configuration; time zones of {tzdata.IANA_VERSION}")
