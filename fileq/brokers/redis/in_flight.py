"""A call in flight: commands that were sent, and whose result is taken once or dropped.

Owns one connection from sending to reading. A dropped call disconnects it: otherwise the next call would read the
replies to this one. A broken connection is tried again `redis.max_retries` times, because every command fileq sends can
be repeated without a second effect. A time-out is never tried again: the caller has waited long enough. A server that
does not have a script (NOSCRIPT) gets it, and then the whole batch again. After a kill -9 the server still executes
what it has received.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from fileq.brokers.redis.connection import DRIVER_ERRORS, LoginRefused, RedisConnection, ReplyError, packed, translate
from fileq.brokers.redis.link import Link
from fileq.brokers.redis.scripts import Command, scripts_in
from fileq.core.errors import BrokerUnavailable

T = TypeVar("T")
_FIRST_PAUSE_S = 0.01


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
