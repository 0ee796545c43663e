"""The wire: sends a batch of commands in one write, reads their replies in one go, and tells errors apart.

The client library is used for what it does best: connecting, authenticating, parsing. Its pipelines and its
own retries are not used, because a verb must be repeated by somebody who knows what a repetition means.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from hiredis import pack_command
from redis import exceptions
from redis.connection import AbstractConnection, Connection

from fileq.brokers.redis.topology import Topology
from fileq.config import Config
from fileq.errors import BrokerError, BrokerUnavailable

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
        self._max_retries = config.redis.max_retries

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
        for attempt in range(self._max_retries + 1):
            try:
                replies = self._exchange(commands)
            except exceptions.TimeoutError as error:
                raise translate(error, self.where) from error
            except (exceptions.ConnectionError, OSError) as error:
                if attempt == self._max_retries or isinstance(error, exceptions.AuthenticationError):
                    raise translate(error, self.where) from error
                time.sleep(_FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
                self.topology.refresh()
                continue
            except (exceptions.RedisError, exceptions.RedisClusterException) as error:
                # Said while connecting: by a Sentinel, a cluster's node, or something that is no Redis at all.
                raise translate(error, self.where) from error
            if any(isinstance(reply, exceptions.AskError) for reply in replies) and attempt < self._max_retries:
                self.topology.refresh()
                continue
            replies.repeated = attempt > 0
            return replies
        raise BrokerUnavailable(f"Redis at {self.where} is away: its slots keep moving")

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

    def _exchange(self, commands: Sequence[Command]) -> Replies:
        pool = self.topology.pool()
        connection = pool.get_connection()
        is_whole = False
        try:
            # Packed here: the library's own packing looks at every argument in Python first.
            connection.send_packed_command([_packed(commands)], check_health=False)
            replies = Replies()
            for _ in commands:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(error)
            is_whole = True
            return replies
        finally:
            # A connection with replies still to come must never serve another call.
            if not is_whole:
                connection.disconnect()
            pool.release(connection)

    def dedicated(self) -> AbstractConnection:
        """A connection of one's own, for calls that block; connected, never in the pool."""
        with _translated(self.where):
            connection = self.topology.lone_connection()
            connection.connect()
            return connection

    def close(self) -> None:
        self.topology.close()


def _packed(commands: Sequence[Command]) -> bytes:
    return b"".join(pack_command(command) for command in commands)  # type: ignore[arg-type]  # its stub is too narrow


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
        raise translate(error, where) from error
