"""One connection to a Redis server: finds the server, opens the connection, logs in, sends bytes and reads replies.
hiredis parses them.

Written here because redis-py takes longer to import than `fileq stats` takes to run; see discovery.py for what it is
still used for. An error reply of the server is returned as a ReplyError and never raised, except those that concern the
whole connection. After any other error than the TimeoutError of a read() with its own time limit, the caller must close
the connection: it is unknown how much of the stream was read.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from hiredis import ProtocolError, Reader, pack_command

from fileq.brokers.redis.layout import Keys
from fileq.config import Config
from fileq.config.schema import TlsSettings
from fileq.config.sources import PasswordFile
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError

if TYPE_CHECKING:
    from fileq.brokers.redis.discovery import ClusterDiscovery, SentinelDiscovery

Argument: TypeAlias = bytes | str | int | float
Address: TypeAlias = tuple[str, int] | str  # host and port, or the path of a socket

READ_BYTES = 1 << 16
# A peer that vanished without a reset is noticed after 30 + 3 × 5 seconds.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class ReplyError(Exception):
    """An error reply of the server, without the word ERR, which says nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(text.removeprefix("ERR "))
        self.code = text.partition(" ")[0]  # such as NOSCRIPT


class LoginRefused(ConnectionError):
    """The server refuses this user, password or database number. Trying again does not help."""


class ConnectionOptions(NamedTuple):
    """What the connections of one broker share. Times in seconds."""

    dial_timeout_s: float
    timeout_s: float  # of sending and of receiving
    db: int = 0
    credentials: Callable[[], tuple[str, ...]] = tuple  # (), (password,) or (user, password); asked for each connection
    tls: TlsSettings | None = None
    name: str = ""  # as CLIENT LIST shows them


class RedisConnection:
    """An open connection. One thread uses it at a time; close() may come from any."""

    def __init__(self, address: Address, options: ConnectionOptions) -> None:
        """Connects and logs in. OSError or ProtocolError otherwise."""
        self.address = address
        self.pid = os.getpid()  # a fork inherits the connections of its parent and must not use them
        self._reader = Reader(protocolError=ProtocolError, replyError=ReplyError)
        self._buffer = bytearray(READ_BYTES)
        self._timeout_s = options.timeout_s
        self._socket_timeout_s: float | None = None  # None: the kernel keeps the limit
        self._not_ready: tuple[type[OSError], ...] = (BlockingIOError,)
        self._socket = _connected(address, options)
        try:
            if options.tls is not None and not isinstance(address, str):
                self._encrypt(address[0], options.tls)
            else:
                self._let_the_kernel_time()
            self._log_in(options)
        except BaseException:
            self.close()
            raise

    def _encrypt(self, host: str, tls: TlsSettings) -> None:
        import ssl  # slow, and seldom needed

        # Made for each connection: the files may have been replaced by newer certificates.
        context = ssl.create_default_context()
        if tls.ca_file:
            context.load_verify_locations(cafile=tls.ca_file)
        if tls.cert_file or tls.key_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
        self._not_ready = (BlockingIOError, ssl.SSLWantReadError)
        self._socket = context.wrap_socket(self._socket, server_hostname=host)  # within the time limit of connecting
        self._socket_timeout_s = self._timeout_s
        self._socket.settimeout(self._timeout_s)

    def _let_the_kernel_time(self) -> None:
        """Python keeps a time limit with a poll() before each call; the kernel does it within the call."""
        limit = struct.pack("ll", *divmod(max(1, round(self._timeout_s * 1_000_000)), 1_000_000))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except OSError:  # a 32-bit system with 64-bit times
            self._socket_timeout_s = self._timeout_s
        self._socket.settimeout(self._socket_timeout_s)

    def _log_in(self, options: ConnectionOptions) -> None:
        credentials = options.credentials()
        commands: list[tuple[str, ...]] = [("AUTH", *credentials)] if credentials else []
        if options.db:
            commands.append(("SELECT", str(options.db)))
        if options.name:
            commands.append(("CLIENT", "SETNAME", options.name))
        if not commands:
            return
        self.send(packed(commands))
        for command in commands:
            # A user without +client|setname works without a name.
            if isinstance(reply := self.read(), ReplyError) and command[1] != "SETNAME":
                raise LoginRefused(str(reply))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except BlockingIOError:
            raise self._timed_out(self._timeout_s) from None

    def wait(self, timeout_s: float) -> bool:
        """Wait for at most this long until something arrives; whether it has."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def read(self, timeout_s: float | None = None) -> Any:
        """The next reply. TimeoutError if it is not complete in time; with `timeout_s`, which may be 0, the connection
        can still be used then."""
        reply = self._reader.gets()
        while reply is False:
            self._receive(timeout_s)
            reply = self._reader.gets()
        if isinstance(reply, ReplyError):
            _raise_if_final(reply)
        return reply

    def _receive(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)
        try:
            count = self._socket.recv_into(self._buffer)
        except self._not_ready:
            raise self._timed_out(self._timeout_s if timeout_s is None else timeout_s) from None
        finally:
            if timeout_s is not None:
                self._socket.settimeout(self._socket_timeout_s)
        if not count:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(self._buffer, 0, count)  # type: ignore[arg-type]  # its stub knows no bytearray

    def is_quiet(self) -> bool:
        """Whether it is open and nothing waits to be read. With TLS, this also takes in the server's session tickets,
        which are no reply."""
        try:
            self._socket.settimeout(0.0)
            self._socket.recv(1)
        except self._not_ready:
            self._socket.settimeout(self._socket_timeout_s)
            return True
        except OSError:
            pass
        return False  # closed, or a reply that no call waits for

    def close(self) -> None:
        if self.pid == os.getpid():  # shutdown would end the connection of the parent, too
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()

    def _timed_out(self, limit_s: float) -> TimeoutError:
        return TimeoutError(f"no answer within {limit_s:g} s")


def packed(commands: Iterable[tuple[Argument, ...]]) -> bytes:
    """These commands as the server reads them."""
    return b"".join(pack_command(command) for command in commands)  # type: ignore[arg-type]  # its stub is too narrow


def _raise_if_final(reply: ReplyError) -> None:
    """Raises what concerns the connection and not the command: it must be reopened."""
    if reply.code in ("NOAUTH", "WRONGPASS"):
        raise LoginRefused(str(reply))
    if reply.code == "LOADING" or "max number of clients" in str(reply):
        raise ConnectionError(str(reply))


def _connected(address: Address, options: ConnectionOptions) -> socket.socket:
    if isinstance(address, str):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(options.dial_timeout_s)
            local.connect(address)
        except BaseException:
            local.close()
            raise
        return local
    remote = socket.create_connection(address, options.dial_timeout_s)
    remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    remote.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        remote.setsockopt(socket.IPPROTO_TCP, option, value)
    return remote


# The errors of connections and servers as fileq's: unavailable (the same call may succeed later) or refused.
#
# Owns the list of replies that mean "not now". A message never contains a password.


# Replies that describe the state of the server. None of them is a failure of a job.
AWAY = (
    *("LOADING", "READONLY", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"),
    *("UNBLOCKED", "NOAUTH", "WRONGPASS", "max number of clients", "FAILOVER"),
    "NOSCRIPT",  # the server lost the scripts again right after they were loaded
    *("MOVED", "ASK"),  # a hash slot migrates to another node
    "Protocol error: unauthenticated",  # in place of NOAUTH when a call has more than ten arguments
)
DRIVER_ERRORS = (ReplyError, ProtocolError, OSError)
_IN_SCRIPT = re.compile(r" script: ([0-9a-f]{40}, )?on @user_script:\d+\.$")  # means nothing to an operator


def translate(error: Exception, where: str, command: str = "a command") -> BrokerError:
    """One of DRIVER_ERRORS as one of fileq's. `command` names the refused command and its key, because the text of
    Redis does not."""
    text = _IN_SCRIPT.sub("", error.strerror or str(error) if isinstance(error, OSError) else str(error))
    if isinstance(error, ProtocolError):
        text = f"the server there does not speak Redis's protocol ({text})"
    if not isinstance(error, ReplyError) or text.startswith(AWAY):
        return BrokerUnavailable(f"Redis at {where} is unavailable: {text or type(error).__name__}")
    if text.startswith("NOPERM"):
        return BrokerError(f"Redis at {where} forbids {command}: {text}; docs/redis.md lists what it needs")
    return BrokerError(f"Redis at {where} refused {command}: {text}")


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, where) from error


# Which server to connect to: a plain one, a socket, the master that Sentinel names, or a node of a cluster.
#
# Owns the address and the options of every connection. Sends no command of fileq's.


SENTINEL_PORT, REDIS_PORT = 26379, 6379
# Of a worker, so that a fleet of a thousand needs four thousand: one waits for jobs, one watches due times, and its
# threads share the others. The pump has one or two in use, and waits for no other thread that waits for it.
WORKER_CONNECTIONS = 4


class Topology:
    """The server that holds fileq's keys. Call refresh() when another one may have taken over. Thread-safe."""

    def __init__(self, config: Config, role: str = "") -> None:
        self.where = config.redis.location
        self.pool_size = config.redis.pool_size_multiplier * (os.cpu_count() or 1)
        if role == "worker":
            self.pool_size = min(self.pool_size, WORKER_CONNECTIONS - 2)
        name = f"fileq:{role}:{socket.gethostname()}-{os.getpid()}" if role else ""
        self._options = _connection_options(config)._replace(name=name)
        self._discovery: SentinelDiscovery | ClusterDiscovery | None = None
        self._address: Address | None = None  # the last one that was found
        url = urlsplit(config.redis.url)
        self.is_sentinel = url.scheme == "redis+sentinel"
        if url.scheme == "redis+cluster":
            self._discovery = self._cluster(Keys(config), url.netloc)
        elif self.is_sentinel:
            self._discovery = self._sentinels(url.netloc, url.path)
        elif url.scheme == "unix":
            self._address = unquote(url.path)
        else:
            self._address = _hosts(url.netloc, REDIS_PORT)[0] if url.netloc else config.redis.host_and_port

    def connect(self) -> RedisConnection:
        """A new connection to the server that holds fileq's keys. OSError, ProtocolError or ReplyError otherwise."""
        address = self._address
        if self._discovery is not None and (address is None or self.is_sentinel):
            address = self._address = self._discovery.address()
        assert address is not None
        return RedisConnection(address, self._options)

    def is_current(self, connection: RedisConnection) -> bool:
        """Whether it leads to the server that was found last."""
        return connection.address == self._address

    def refresh(self) -> None:
        """Look for the server again at the next connect(). Sentinel is queried at every one."""
        if self._discovery is not None:
            self._address = None

    def close(self) -> None:
        if self._discovery is not None:
            self._discovery.close()

    def _sentinels(self, netloc: str, path: str) -> SentinelDiscovery:
        from fileq.brokers.redis.discovery import SentinelDiscovery  # slow: imports redis-py

        master = path.strip("/").partition("/")[0]
        if not master:
            raise ConfigError("redis.url names no master; write redis+sentinel://host1,host2/MASTER/0")
        return SentinelDiscovery(_hosts(netloc, SENTINEL_PORT), master, self._options)

    def _cluster(self, keys: Keys, netloc: str) -> ClusterDiscovery:
        from fileq.brokers.redis.discovery import ClusterDiscovery  # slow: imports redis-py

        keys.check_hash_slot()
        return ClusterDiscovery(_hosts(netloc, REDIS_PORT), keys.workers, self._options)


def _connection_options(config: Config) -> ConnectionOptions:
    redis = config.redis
    url = urlsplit(redis.url)
    user, password = _credentials(url.netloc)
    username, password = redis.username or unquote(user), redis.password or unquote(password)
    options = ConnectionOptions(
        dial_timeout_s=redis.dial_timeout,
        timeout_s=max(redis.read_timeout, redis.write_timeout),
        db=0 if url.scheme == "redis+cluster" else redis.db or _db_of(redis.url),  # a cluster has no other
        tls=redis.tls if redis.tls.enabled or url.scheme == "rediss" else None,
    )
    if redis.password_file:
        # Read for each new connection: a password that was rotated is used as soon as the server refuses the old one
        # and the broker connects again.
        file = PasswordFile(redis.password_file, password)
        return options._replace(credentials=lambda: (username, file.current()) if username else (file.current(),))
    if password:  # a user name alone can't log in
        return options._replace(credentials=lambda: (username, password) if username else (password,))
    return options


def _db_of(text: str) -> int:
    """The database number in redis.url; 0 without one."""
    url = urlsplit(text)
    if url.scheme == "unix":
        return int(dict(parse_qsl(url.query)).get("db", 0))
    path = url.path.strip("/")
    return int((path.partition("/")[2] if url.scheme == "redis+sentinel" else path) or 0)


def _credentials(netloc: str) -> tuple[str, str]:
    user, _, password = netloc.rpartition("@")[0].partition(":")
    return user, password


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    """Parses host:port,host:port, with or without credentials before it; IPv6 addresses in brackets."""
    hosts = []
    for part in netloc.rpartition("@")[2].split(","):
        parsed = urlsplit(f"//{part}")
        hosts.append((parsed.hostname or "localhost", parsed.port or default_port))
    return hosts
