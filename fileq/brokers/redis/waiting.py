"""Waiting for jobs and for events on Redis: a push by any program wakes one waiter of the fleet.

Of all workers with the same queues one has the *watch*, a short lease. Its waiter looks at the queues on a connection
with CLIENT TRACKING, so the server reports the next push to it, and to no other. The other waiters block in BLPOP on
the lists of *tokens*. A claim that leaves jobs in a queue puts a token there (lua/claim.lua), as do `resume` and a
waiter whose pump has no slot left. A token only wakes: nothing but the claim script claims.

Tokens and the watch may be lost with a worker that dies. Then each waiter finds the jobs when its BLPOP ends:
`worker.brpoplpush_timeout` is the most that it costs. Each time it also asks for the watch, which is free soon after
its holder died. Two waiters that both have the watch both wake.

Of a large fleet nearly all waiters are such others, so what one of them sends each time is one packet of cheap commands
and no script. Only a free watch is worth the script that takes it. The more of them there are, the longer each waits
(`patience`): what was lost is found by the first whose wait ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Any

from hiredis import ProtocolError, PushNotification

from fileq.brokers.redis.scripts import Command, script, scripts_in
from fileq.brokers.redis.store import (
    DRIVER_ERRORS,
    InFlightCall,
    Link,
    RedisConnection,
    RedisStore,
    ReplyError,
    packed,
    translate,
)
from fileq.core.errors import BrokerUnavailable

OVERDUE_S = 3.0  # a reply that is later than its time limit by this much is lost
UNTRACKED_PAUSE_S = 0.02  # how often the holder of the watch looks if the server refuses to track
WATCH_TIMES = 3  # the watch lasts as long as this many waits


class RedisWaiter:
    """The waiter of one pump, on one connection. While it is armed, either it has the watch and the last look found no
    job, or a BLPOP is in flight."""

    def __init__(self, store: RedisStore, longest_s: float) -> None:
        self._store = store
        self._link = store.link
        self._scripts = store.scripts
        self._keys = store.keys
        self._longest_s = longest_s
        self._lasts_ms = round(WATCH_TIMES * longest_s * 1000)
        self._holder = os.urandom(8).hex()
        self._handed_over = store.keys.handed_over.encode()
        self._connection: RedisConnection | None = None
        self._has_watch = False
        self._is_tracked = False  # the server reports changes on this connection
        self._is_refused = False  # it does so for no connection of this user
        self._is_standby = False  # another waiter had the watch at the last look
        standby = [("GET", store.keys.watch), ("SMEMBERS", store.keys.paused)]
        self._standby_look: list[Command] = [*standby, *(("LLEN", queue) for queue in store.keys.queues)]
        self._is_armed = False
        self._armed_s = 0.0
        self._blpop_s = longest_s  # how long the last BLPOP blocks
        self._has_work = False

    def fileno(self) -> int:
        if self._connection is None:
            raise ValueError("the waiter is not armed")
        return self._connection.fileno()

    def arm(self) -> float:
        """BrokerUnavailable if the server does not answer."""
        self._read()
        now_s = time.monotonic()
        if self._has_watch and now_s >= self._armed_s + self._wait_s:
            self._is_armed = False  # to renew the watch
        elif self._is_armed and now_s > self._armed_s + self._blpop_s + OVERDUE_S:
            # The server ends each BLPOP itself. A reply this late never comes: a router or firewall lost the connection
            # without a reset, and the waiter would miss every job.
            self._drop()
        try:
            if self._connection is None:
                self._connection = self._link.dedicated()
                self._ask(("HELLO", 3))
            if not self._is_armed and not self._has_work:
                self._look()
                self._read()  # a report that came with the last reply does not make the descriptor readable
        except DRIVER_ERRORS as error:
            self._drop()
            raise translate(error, self._link.where, "a look at the queues") from error
        return 0.0 if self._has_work else self._wait_s

    @property
    def _wait_s(self) -> float:
        if not self._has_watch:
            return self._blpop_s
        return self._longest_s if self._is_tracked else UNTRACKED_PAUSE_S

    def take(self) -> bool:
        self._read()
        has_work, self._has_work = self._has_work, False
        return has_work

    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while not self.take():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            poll = select.poll()
            longest_s = self.arm()
            if self._connection is not None:
                poll.register(self, select.POLLIN)
            poll.poll(min(left_s, longest_s) * 1000)
        return True

    def close(self) -> None:
        """Hands the watch over, and a token that came too late."""
        self._read()
        connection, keys = self._connection, self._keys
        if connection is not None and (self._has_watch or self._has_work):
            command = ("EVAL", script("hand_over").text, 2, keys.watch, keys.handed_over, self._holder, self._lasts_ms)
            with contextlib.suppress(OSError):  # the reply is not awaited: the watch also ends by itself
                connection.send(packed([command]))
        self._drop()

    def _look(self) -> None:
        """Looks for jobs; if there is none, blocks in BLPOP unless this waiter has the watch."""
        assert self._connection is not None
        if self._is_standby:
            self._look_standing_by()
            return
        has_work = self._looked()
        if self._has_watch != self._is_tracked and not self._is_refused:
            answer = self._ask(("CLIENT", "TRACKING", *(("ON", "NOLOOP") if self._has_watch else ("OFF",))))
            self._is_refused = isinstance(answer, ReplyError)
            self._is_tracked = self._has_watch and not self._is_refused
            has_work = self._looked()  # the server tracks what it reads from now on
        self._has_work |= has_work
        self._is_armed, self._armed_s = not has_work, time.monotonic()
        self._is_standby = not self._has_watch
        if not has_work and not self._has_watch:
            self._connection.send(packed([self._blpop()]))

    def _look_standing_by(self) -> None:
        """The same while another waiter has the watch, in one packet that ends with the BLPOP."""
        assert self._connection is not None
        self._connection.send(packed([*self._standby_look, self._blpop()]))
        replies = [self._connection.read() for _ in self._standby_look]
        self._is_armed, self._armed_s = True, time.monotonic()
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        holder, paused, *lengths = replies
        self._is_standby = holder is not None
        queues = zip(self._keys.queue_names, lengths, strict=True)
        self._has_work |= any(length and queue.encode() not in paused for queue, length in queues)

    def _blpop(self) -> Command:
        self._blpop_s = self._longest_s * self._store.patience
        return ("BLPOP", *self._keys.tokens, self._keys.handed_over, str(self._blpop_s))

    def _looked(self) -> bool:
        reply = self._ask(self._scripts.watch(self._holder, self._lasts_ms))
        if isinstance(reply, ReplyError):
            raise reply
        is_mine, has_work = reply
        self._has_watch = bool(is_mine)
        return bool(has_work)

    def _ask(self, command: Command) -> Any:
        """The reply."""
        assert self._connection is not None
        self._connection.send(packed([command]))
        while isinstance(reply := self._connection.read(), PushNotification):
            pass  # of a change before this
        if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
            InFlightCall(self._link, [("SCRIPT", "LOAD", one.text) for one in scripts_in([command])], list).take()
            return self._ask(command)
        return reply

    def _read(self) -> None:
        """Reads what has arrived."""
        while self._connection is not None:
            try:
                reply = self._connection.read(0.0)
            except TimeoutError:
                return  # nothing more, a part of a reply, or data of the TLS layer
            except (OSError, ProtocolError):
                self._drop()
                self._has_work = True  # the claim that follows meets the outage, or finds jobs that came meanwhile
                return
            was_armed, self._is_armed = self._is_armed, False
            if isinstance(reply, ReplyError):
                self._drop()
                refusal = translate(reply, self._link.where, "BLPOP")
                if not isinstance(refusal, BrokerUnavailable):
                    raise refusal from reply  # claims may not hit this error, and then every wait would end at once
                self._has_work = True  # the claim that follows gets the same reply and handles it
            elif isinstance(reply, PushNotification):
                self._has_work |= was_armed  # the last look found no job; otherwise a claim may be all that changed
            elif reply is not None:  # None: the BLPOP has ended
                if reply[0] == self._handed_over:
                    self._is_standby = False  # the watch is free
                else:
                    self._has_work = True

    def _drop(self) -> None:
        self._is_armed = self._has_watch = self._is_tracked = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class RedisSubscription:
    """The events channel, on a connection of its own."""

    def __init__(self, link: Link, channel: str) -> None:
        self._where = link.where
        self._connection = link.dedicated()
        try:
            self._connection.send(packed([("SUBSCRIBE", channel)]))
            link.checked(self._connection.read(), f"SUBSCRIBE {channel}")
        except DRIVER_ERRORS as error:
            self._connection.close()
            raise translate(error, self._where) from error
        except BaseException:
            self._connection.close()
            raise

    def get(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                message = self._connection.read(max(0.0, deadline - time.monotonic()))
                if isinstance(message, list) and message[0] == b"message":
                    return bytes(message[2])
        except TimeoutError:
            return None
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    def close(self) -> None:
        self._connection.close()
