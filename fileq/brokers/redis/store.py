"""The client of one Redis server, which all parts of the broker share: from the address to the reply.

    Topology         where the server is
    RedisConnection  one connection; hiredis parses the replies
    Link             the pool: lends each connection to one call at a time
    InFlightCall     one batch of commands in one round trip
    RedisStore       calls of commands and scripts, with the keys, the clock and the claim order

Keeps no job and no copy of the server's state. Calls that block are in waiting.py. Written here because redis-py takes
longer to import than `fileq stats` takes to run; see discovery.py for what it is still used for.

An error reply is returned as a ReplyError, unless it concerns the whole connection. After any error but the
TimeoutError of a read() with its own time limit, or if a call is dropped, the connection is closed: it is unknown how
much of the stream was read. A broken connection is tried again `redis.max_retries` times, because every command fileq
sends can be repeated without a second effect. A time-out is never tried again: the caller has waited long enough. A
server that does not have a script (NOSCRIPT) gets it, and then the whole batch again. After a kill -9 the server still
executes what it has received.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from hiredis import ProtocolError, Reader, pack_command

from fileq.brokers.local_waiter import ClaimOrder
from fileq.brokers.redis.layout import Keys, as_record
from fileq.brokers.redis.scripts import Argument, Command, Scripts, scripts_in
from fileq.brokers.types import Record
from fileq.config import Config
from fileq.config.schema import TlsSettings
from fileq.config.sources import PasswordFile
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from fileq.core.job import wall_clock_ms

if TYPE_CHECKING:
    from fileq.brokers.redis.discovery import ClusterDiscovery, SentinelDiscovery

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


# the pool, and the calls

T = TypeVar("T")
HOT_S = 0.25
SCAN_COUNT = 1000
_FIRST_PAUSE_S = 0.01
_ESCAPES = str.maketrans({c: f"\\{c}" for c in "*?[]\\^"})


class Link:
    """One server, or one hash slot of a cluster, and the connections to it. Thread-safe."""

    def __init__(self, config: Config, role: str = "") -> None:
        self.topology = Topology(config, role)
        self.where = self.topology.where
        self.max_retries = config.redis.max_retries
        self._pid = os.getpid()
        self._open: set[RedisConnection] = set()  # all connections of the pool, lent or idle
        self._opening, self._growing = 0, threading.Lock()  # how many are being opened
        self._idle: deque[tuple[RedisConnection, float]] = deque()  # and when each was used last
        self.cooled_s = 0.0  # when a connection broke last
        self._wait_s = max(config.redis.read_timeout, config.redis.write_timeout)
        self._callers: deque[threading.Event] = deque()  # that wait for a connection; the first one is next

    def warm(self, count: int) -> None:
        """Open this many connections, or as many as there may be, so that the first calls need not."""
        with translated(self.where):
            opened: list[RedisConnection] = []
            try:
                opened.extend(self.connection() for _ in range(min(count, self.topology.pool_size)))
            finally:
                for connection in opened:
                    self.give_back(connection)

    def checked(self, reply: Any, command: str = "a command") -> Any:
        """The reply; an error reply is raised as one of fileq's errors."""
        if isinstance(reply, ReplyError):
            raise translate(reply, self.where, command) from reply
        return reply

    def reply(self, command: Command) -> Any:
        """The reply to one command; an error reply is raised."""
        return self.reply_of(command)[0]

    def reply_of(self, command: Command) -> tuple[Any, bool]:
        """The reply to one command, and whether it was sent more than once; an error reply is raised."""
        replies = InFlightCall(self, [command], lambda replies: replies).take()
        return self.checked(replies[0]), replies.is_repeated

    def dedicated(self) -> RedisConnection:
        """A connection outside the pool, for calls that block."""
        with translated(self.where):
            return self.topology.connect()

    def connection(self) -> RedisConnection:
        """A connection for one call. It is tested first, unless it was used a moment ago.

        If all are in use, waits for its turn as long as for a reply, then raises ConnectionError. Callers get theirs in
        the order in which they ask, so a thread that always needs one keeps it from no other."""
        if self._pid != os.getpid():  # after a fork: these are the connections of the parent
            self._pid, self._open, self._idle, self._callers = os.getpid(), set(), deque(), deque()
            self._opening, self._growing = 0, threading.Lock()
        if not self._callers and (connection := self._idle_or_new()) is not None:
            return connection
        until_s = time.monotonic() + self._wait_s
        is_next = threading.Event()
        self._callers.append(is_next)
        try:
            while True:
                if self._callers[0] is is_next and (connection := self._idle_or_new()) is not None:
                    return connection
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise ConnectionError(f"all {self.topology.pool_size} connections to it are in use")
                is_next.wait(left_s)
                is_next.clear()  # before the next look: what is freed after it sets the event again
        finally:
            self._callers.remove(is_next)
            self._note_freed()

    def _idle_or_new(self) -> RedisConnection | None:
        while self._idle:
            try:
                connection, used_s = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            is_hot = used_s > self.cooled_s and time.monotonic() - used_s < HOT_S
            # Sentinel may have named another master since, or the cluster another node.
            if self.topology.is_current(connection) and (is_hot or connection.is_quiet()):
                return connection
            self.discard(connection)
        with self._growing:
            if len(self._open) + self._opening >= self.topology.pool_size:
                return None
            self._opening += 1
        try:
            connection = self.topology.connect()
            self._open.add(connection)
            return connection
        finally:
            with self._growing:
                self._opening -= 1

    def _note_freed(self) -> None:
        with contextlib.suppress(IndexError):
            self._callers[0].set()

    def give_back(self, connection: RedisConnection) -> None:
        """All replies were read: the connection may serve another call."""
        self._idle.append((connection, time.monotonic()))
        self._note_freed()

    def discard(self, connection: RedisConnection) -> None:
        """Replies may still come: close it, so that no other call reads them."""
        self._open.discard(connection)
        connection.close()
        self._note_freed()

    def check_master(self, reply: ReplyError) -> None:
        """ConnectionError if the server says that it is no longer the master that Sentinel named."""
        if self.topology.is_sentinel and reply.code == "READONLY":
            self.topology.refresh()
            raise ConnectionError(str(reply))

    def cool(self) -> None:
        """Test every idle connection before its next use: one was broken, so others may be."""
        self.cooled_s = time.monotonic()

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
        self.topology.close()


class Replies(list[Any]):
    """The replies in the order of their commands; an error reply is an exception in its position."""

    is_repeated = False  # sent more than once: the server may have executed an earlier sending
    is_script_missing = False
    is_moved = False  # a cluster's node no longer serves these keys


class InFlightCall(Generic[T]):
    """One batch of commands in one round trip. `decode` makes the result of its replies, `on_failure` is called once if
    there is no result: the call failed or was dropped. One thread uses it."""

    is_answered = False

    def __init__(
        self,
        link: Link,
        commands: Sequence[Command],
        decode: Callable[[Replies], T],
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self._link = link
        self._commands = commands
        self._decode = decode
        self._on_failure = on_failure
        self._carrier: RedisConnection | None = None
        self._send_error: Exception | None = None
        self._is_over = False
        try:
            self._send()
        except DRIVER_ERRORS as error:
            self._send_error = error  # take() decides whether to send again

    def wait(self, timeout_s: float) -> bool:
        """Wait for at most this long until replies arrive, or an error that take() would raise; whether it has."""
        return self._carrier is None or self._carrier.wait(timeout_s)

    def take(self) -> T:
        """The result; waits for it. BrokerUnavailable, or BrokerError if the server refuses."""
        if self._is_over:
            raise RuntimeError("the result of this call was already taken or dropped")
        self._is_over = True
        try:
            return self._decode(self._with_scripts())
        except BaseException:
            self._fail()
            raise

    def drop(self) -> None:
        """Give up the result. The server may execute the call all the same."""
        if self._is_over:
            return
        self._is_over = True
        if self._carrier is not None:
            self._link.discard(self._carrier)
        self._fail()

    def _fail(self) -> None:
        if self._on_failure is not None:
            self._on_failure()

    def _with_scripts(self) -> Replies:
        replies = self._exchange()
        if not replies.is_script_missing:
            return replies
        self._load_scripts()
        # A server that crashed after executing the call has lost the reply and the scripts together.
        was_repeated = replies.is_repeated
        replies = self._exchange()
        replies.is_repeated |= was_repeated
        return replies

    def _load_scripts(self) -> None:
        commands: list[Command] = [("SCRIPT", "LOAD", script.text) for script in scripts_in(self._commands)]
        for reply in InFlightCall(self._link, commands, list).take():
            self._link.checked(reply)

    def _exchange(self) -> Replies:
        """Read what was sent, or send and read, until there are replies or the retries are used up."""
        link = self._link
        for attempt in range(link.max_retries + 1):
            try:
                replies = self._read()
            except TimeoutError as error:
                raise translate(error, link.where) from error
            except OSError as error:
                if attempt == link.max_retries or isinstance(error, LoginRefused):
                    raise translate(error, link.where) from error
                link.cool()
                time.sleep(_FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
                link.topology.refresh()
                continue
            except DRIVER_ERRORS as error:
                # While connecting: from a Sentinel, from a node of a cluster, or from a server that is no Redis.
                raise translate(error, link.where) from error
            if replies.is_moved and attempt < link.max_retries:
                link.topology.refresh()
                continue
            replies.is_repeated = attempt > 0
            return replies
        raise BrokerUnavailable(f"Redis at {link.where} is unavailable: the hash slots of the cluster keep moving")

    def _send(self) -> None:
        connection = self._link.connection()
        try:
            connection.send(packed(self._commands))
        except BaseException:
            self._link.discard(connection)
            raise
        self._carrier = connection

    def _read(self) -> Replies:
        error, self._send_error = self._send_error, None
        if error is not None:
            raise error
        if self._carrier is None:
            self._send()
        assert self._carrier is not None
        connection, self._carrier = self._carrier, None
        replies = Replies()
        try:
            for _ in self._commands:
                reply = connection.read()
                replies.append(reply)
                if isinstance(reply, ReplyError):
                    replies.is_script_missing |= reply.code == "NOSCRIPT"
                    replies.is_moved |= reply.code in ("MOVED", "ASK")
                    self._link.check_master(reply)
        except BaseException:
            self._link.discard(connection)
            raise
        self._link.give_back(connection)
        return replies


class RedisStore:
    """Calls to one server. Thread-safe. `clock` replaces the server's time in tests."""

    def __init__(self, config: Config, *, role: str = "", clock: Callable[[], int] | None = None) -> None:
        self.config = config
        self.keys = Keys(config)
        self.queues = self.keys.queue_names
        self.link = Link(config, role)
        self.scripts = Scripts(config, self.keys, clock)
        self.order = ClaimOrder(self.queues, config.worker.starvation_share)
        self.tokens: Counter[str] = Counter()  # claims of each slot so far; a token tells two claims of a slot apart
        self.last_offsets: dict[str, int] = {}  # of each list, counted from its tail: where a search begins
        self.page_sizes: dict[str, int] = {}  # of each list: how many of its elements make a page
        self.patience = 1.0  # see protocol.Broker
        self._clock = clock

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, in one round trip; the first error reply is raised."""
        if not commands:
            return []
        replies = InFlightCall(self.link, commands, list).take()
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                self.link.checked(reply, _name_of(command))
        return replies

    def calls_in_batches(self, commands: Sequence[Command]) -> list[Any]:
        """As calls(), in as many round trips as it takes to keep each short."""
        batches = (commands[start : start + SCAN_COUNT] for start in range(0, len(commands), SCAN_COUNT))
        return [reply for batch in batches for reply in self.calls(batch)]

    def call(self, *command: Argument) -> Any:
        return self.calls([command])[0]

    def run(self, script: str, keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> Any:
        """What the script returns."""
        return self.link.reply(self.scripts.command(script, keys, args))

    def now_ms(self) -> int:
        return self._clock() if self._clock is not None else wall_clock_ms()

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        """The record of each job; None where there is none."""
        found = zip(ids, self.calls([("HGETALL", self.keys.record(id)) for id in ids]), strict=True)
        return [as_record(id, dict(zip(flat[::2], flat[1::2], strict=True))) for id, flat in found]

    def unregistered_slots(self) -> list[str]:
        """Slots that have a processing list and no registry entry."""
        before, after, _, _ = self.keys.split_patterns()
        registered = {slot.decode() for slot in self.call("HKEYS", self.keys.workers)}
        found = {
            key.decode()[len(before) : len(key.decode()) - len(after)]
            for keys in self.scan(before, after, kind="list")
            for key in keys
        }
        return sorted(found - registered)

    def scan(self, before: str, after: str = "", *, kind: str) -> Iterator[list[bytes]]:
        """All keys of this type that start and end with these texts, page by page."""
        pattern = f"{before.translate(_ESCAPES)}*{after.translate(_ESCAPES)}"
        cursor: bytes | int = 0
        while True:
            cursor, keys = self.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
            yield keys
            if int(cursor) == 0:
                return


def _name_of(command: Command) -> str:
    """What an error says of a command. An error of a script names its own one."""
    return "" if command[0] == "EVALSHA" else " ".join(map(str, command[:2]))
