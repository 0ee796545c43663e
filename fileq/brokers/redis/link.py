"""The wire: sends a batch of commands in one write, reads their replies in one go, and tells errors apart.

The client library is used for what it does best: connecting, authenticating, parsing. Its pipelines and its
own retries are not used, because a verb must be repeated by somebody who knows what a repetition means.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from hiredis import pack_command
from redis import exceptions
from redis.connection import AbstractConnection, Connection, ConnectionPool

from fileq.brokers.redis.topology import Topology
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerUnavailable

Command: TypeAlias = tuple[bytes | str | int, ...]

# Replies that say "not now" about the server. None of them is ever a job's fault.
AWAY = (
    *("LOADING", "READONLY", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"),
    *("UNBLOCKED", "NOAUTH", "WRONGPASS", "ERR max number of clients", "max number of clients", "FAILOVER"),
    "Protocol error: unauthenticated",  # what NOAUTH becomes when a call has more than ten arguments
)
_AWAY_TYPES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.NoScriptError,  # loaded a moment ago, and forgotten again
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.AskError,  # also MOVED: a slot on its way to another node
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,  # no node of a cluster says which of them serves what
    exceptions.InvalidResponse,
    OSError,
)
_IN_SCRIPT = re.compile(r" script: ([0-9a-f]{40}, )?on @user_script:\d+\.$")  # of no use to an operator
_OBJECTS = re.compile(r" : <redis[.].*", re.DOTALL)  # how the library names Sentinels that know no master
_FIRST_PAUSE_S = 0.01
HOT_S, HOT_MAX = 0.25, 4


def translate(error: Exception, where: str, command: str = "") -> BrokerError:
    """The client library's error as one of ours, without anything secret in it. `command` names what was refused
    and its key, which Redis's own text does not."""
    text = _OBJECTS.sub("; no Sentinel knows it", _IN_SCRIPT.sub("", str(error)))
    if isinstance(error, exceptions.InvalidResponse):
        text = f"whatever answers there does not speak Redis's protocol ({text})"
    if isinstance(error, _AWAY_TYPES) or text.startswith(AWAY):
        return BrokerUnavailable(f"Redis at {where} is away: {text or type(error).__name__}")
    if isinstance(error, exceptions.NoPermissionError) or text.startswith("NOPERM"):
        return BrokerError(f"Redis at {where} forbids {command or 'it'}: {text}; see the README's list of rights")
    return BrokerError(f"Redis at {where} refused {command or 'it'}: {text}")


class Replies(list[Any]):
    """Replies in the order of their commands. `repeated` says that the batch was sent more than once, and that
    the server may have obeyed an earlier time."""

    repeated = False


class Link:
    """One server, or one slot of a cluster, and the connections to it. Safe to share between threads."""

    def __init__(self, config: Config) -> None:
        self.topology = Topology(config)
        self.where = self.topology.where
        self.max_retries = config.redis.max_retries
        self._hot: deque[tuple[ConnectionPool, Connection, float]] = deque()

    def warm(self, count: int) -> None:
        """Open this many connections, so that the first calls find them."""
        with _translated(self.where):
            pool = self.topology.pool()
            opened: list[Connection] = []
            try:
                opened.extend(pool.get_connection() for _ in range(count))
            finally:
                for connection in opened:
                    pool.release(connection)

    def send(self, commands: Sequence[Command]) -> Replies:
        """The replies to these commands, in one round trip; a reply that is an error is in its place as such.

        Only for commands that can be repeated: a broken connection is tried again `redis.max_retries` times,
        then it is BrokerUnavailable. A time-out is so at once, for the caller has waited long enough."""
        return self.post(commands).take()

    def post(self, commands: Sequence[Command]) -> Posted:
        """As send(), in two steps: these are on their way now, the replies are taken later."""
        return Posted(self, commands)

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """What commands that only read, or can be repeated without harm, give; the first error is raised as ours."""
        if not commands:
            return []
        replies = self.send(commands)
        return [self.value(reply, " ".join(map(str, c[:2]))) for c, reply in zip(commands, replies, strict=True)]

    def call(self, *command: bytes | str | int) -> Any:
        return self.calls([command])[0]

    def value(self, reply: Any, command: str = "") -> Any:
        """The reply itself, or its error raised as ours."""
        if isinstance(reply, Exception):
            raise translate(reply, self.where, command) from reply
        return reply

    def dedicated(self) -> AbstractConnection:
        """A connection of one's own, for calls that block; connected, never in the pool."""
        with _translated(self.where):
            connection = self.topology.lone_connection()
            connection.connect()
            return connection

    def connection(self) -> tuple[ConnectionPool, Connection]:
        """One to use and give back. The pool looks at each that it gives out whether it still stands; one that served
        a moment ago is taken as it is."""
        pool = self.topology.pool()
        with contextlib.suppress(IndexError):
            from_pool, connection, used_s = self._hot.pop()
            # Owned: a Sentinel may have named another master, and a fork has the parent's connections.
            is_ours = connection.pid == os.getpid() and pool.owns_connection(connection)
            if from_pool is pool and is_ours and time.monotonic() - used_s < HOT_S:
                return pool, connection
            from_pool.release(connection)
        return pool, pool.get_connection()

    def give_back(self, pool: ConnectionPool, connection: Connection) -> None:
        if len(self._hot) < HOT_MAX:
            self._hot.append((pool, connection, time.monotonic()))
        else:
            pool.release(connection)

    def cool(self) -> None:
        """One was found cut, and the others may be: the pool looks at them before they serve again."""
        with contextlib.suppress(IndexError):
            while True:
                pool, connection, _ = self._hot.pop()
                pool.release(connection)

    def close(self) -> None:
        self.topology.close()


class Posted:
    """A batch on its way. Its connection serves nobody else until the replies are taken, or it is dropped."""

    def __init__(self, link: Link, commands: Sequence[Command]) -> None:
        self._link = link
        self._commands = commands
        self._exchange: _Exchange | None = None
        self._failure: Exception | None = None  # of the first try, told when the replies are asked for
        try:
            self._exchange = _Exchange(link, commands)
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
            self._failure = error

    def take(self) -> Replies:
        """The replies, once; waits for them. Raises as Link.send()."""
        link = self._link
        for attempt in range(link.max_retries + 1):
            try:
                replies = self._replies()
            except exceptions.TimeoutError as error:
                raise translate(error, link.where) from error
            except (exceptions.ConnectionError, OSError) as error:
                if attempt == link.max_retries or isinstance(error, exceptions.AuthenticationError):
                    raise translate(error, link.where) from error
                link.cool()
                time.sleep(_FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
                link.topology.refresh()
                continue
            except (exceptions.RedisError, exceptions.RedisClusterException) as error:
                # Said while connecting: by a Sentinel, a cluster's node, or something that is no Redis at all.
                raise translate(error, link.where) from error
            if any(isinstance(reply, exceptions.AskError) for reply in replies) and attempt < link.max_retries:
                link.topology.refresh()
                continue
            replies.repeated = attempt > 0
            return replies
        raise BrokerUnavailable(f"Redis at {link.where} is away: its slots keep moving")

    def drop(self) -> None:
        """Nobody will ask for the replies."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.give_up()

    def _replies(self) -> Replies:
        exchange, self._exchange = self._exchange, None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return (exchange or _Exchange(self._link, self._commands)).finish(len(self._commands))


class _Exchange:
    """One try: a connection out of the pool, with a request sent on it and replies to come."""

    def __init__(self, link: Link, commands: Sequence[Command]) -> None:
        self._link = link
        self._pool, self._connection = link.connection()
        try:
            # Packed here: the library's own packing looks at every argument in Python first.
            self._connection.send_packed_command([_packed(commands)], check_health=False)
        except BaseException:
            self.give_up()
            raise

    def finish(self, count: int) -> Replies:
        replies = Replies()
        try:
            for _ in range(count):
                try:
                    replies.append(self._connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(error)
        except BaseException:
            self.give_up()
            raise
        self._link.give_back(self._pool, self._connection)
        return replies

    def give_up(self) -> None:
        """A connection with replies still to come must never serve another call."""
        self._connection.disconnect()
        self._pool.release(self._connection)


def _packed(commands: Sequence[Command]) -> bytes:
    return b"".join(pack_command(command) for command in commands)  # type: ignore[arg-type]  # its stub is too narrow


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
        raise translate(error, where) from error
