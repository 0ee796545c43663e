"""What the parts of the broker on Redis share: the connections, the scripts, the keys, the clock, the claim order.

`Link` owns the connections and lends each to one call at a time, InFlightCall is a call, RedisStore makes calls of
commands and scripts. Keeps no job and no copy of the server's state. Calls that block are in waiting.py.

A connection with replies still to come is never given to another call: a call that is dropped disconnects it. A broken
connection is tried again `redis.max_retries` times, because every command fileq sends can be repeated without a second
effect. A time-out is never tried again: the caller has waited long enough. A server that does not have a script
(NOSCRIPT) gets it, and then the whole batch again. After a kill -9 the server still executes what it has received.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from fileq.brokers.local_waiter import ClaimOrder
from fileq.brokers.redis.connection import (
    DRIVER_ERRORS,
    LoginRefused,
    RedisConnection,
    ReplyError,
    Topology,
    packed,
    translate,
    translated,
)
from fileq.brokers.redis.layout import Keys, as_record
from fileq.brokers.redis.scripts import Argument, Command, Scripts, scripts_in
from fileq.brokers.types import Record
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import wall_clock_ms

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
