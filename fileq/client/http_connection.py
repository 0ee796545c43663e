"""HTTP requests to a server: connections that are kept, timeouts, repeated tries, and the errors of its answers.

Every call that goes through here must be repeatable: a try whose answer is lost is made again. Redirects are not
followed, and no variable of the environment chooses a proxy: the key goes to the given server only. Problems that a
server answers with become the exceptions that a broker raises, so that a program handles one set of exceptions for both
transports.
"""

from __future__ import annotations

import http.client
import select
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeAlias
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from fileq.client.address import ServerAddress
from fileq.core.errors import BatchError, BrokerError, BrokerUnavailable, ConfigError, Conflict, FileqError

CONNECT_S = 5.0
ANSWER_S = 35.0  # the server answers within 30 s
BUDGET_S = 30.0  # no new try is made after it
TRIES = 4  # how often a request is sent that gets no answer
PAUSE_S = 0.1  # before the second try; doubled after each
RETRY_AFTER_MAX_S = 5.0
IDLE_MAX = 8
SLICE_S = 0.5  # how long one look at a silent connection lasts, so that a stop is noticed
_TOO_MANY, _AWAY, _GATEWAY = 429, 503, (502, 504)
Send: TypeAlias = Callable[[http.client.HTTPConnection], None]


class HttpReply(Struct, frozen=True):
    """`headers` have names in lower case. `is_repeat`: the server may have done an earlier try already."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_repeat: bool = False


class GivenUp(Exception):
    """The caller has stopped waiting for the answer."""


class HttpConnections:
    """Shared by threads: a call takes an idle connection or opens one."""

    def __init__(self, address: ServerAddress, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._address = address
        self._sleep = sleep
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> HttpReply:
        """The answer, also one that reports an error. Raises BrokerUnavailable without one, GivenUp if `is_stopped`."""
        target = f"{path}?{urlencode(query)}" if query else path
        send = partial(self._send, method, target, body, headers or {}, ANSWER_S)
        until_s, pause_s, is_repeat, tries = time.monotonic() + BUDGET_S, PAUSE_S, False, 0
        while True:
            tries += 1
            try:
                reply = self._try(send, is_stopped)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise BrokerError(f"the certificate of {self._address} is refused: {error.reason}") from error
                if tries >= TRIES or time.monotonic() >= until_s:
                    raise BrokerUnavailable(f"no answer from {self._address}: {_shown(error)}") from error
                is_repeat = True
            else:
                is_lost = reply.status in _GATEWAY and tries < TRIES  # a proxy has no answer, but may have sent it on
                if not (is_lost or _is_temporary(reply)) or time.monotonic() >= until_s:
                    return HttpReply(reply.status, reply.headers, reply.body, is_repeat)
                is_repeat = is_repeat or is_lost
                pause_s = max(pause_s, _retry_after_s(reply))
            if is_stopped is not None and is_stopped():
                raise GivenUp
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_AFTER_MAX_S)

    def open_stream(
        self, path: str, headers: Mapping[str, str], silence_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A connection of its own with an answer that is still to be read. A read raises TimeoutError after
        `silence_s`. BrokerUnavailable if there is no answer."""
        connection = None
        try:
            connection = self._new()
            self._send("GET", path, None, headers, silence_s, connection)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            raise BrokerUnavailable(f"no answer from {self._address}: {_shown(error)}") from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _try(self, send: Send, is_stopped: Callable[[], bool] | None) -> HttpReply:
        connection, is_kept = self._take(), False
        try:
            send(connection)
            if is_stopped is not None:
                _wait_readable(connection, is_stopped)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            reply = HttpReply(answer.status, found, answer.read())
            is_kept = not answer.will_close
            return reply
        finally:
            self._put(connection) if is_kept else connection.close()

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        connection: http.client.HTTPConnection,
    ) -> None:
        connection.sock.settimeout(timeout_s)
        given = {"X-API-Key": self._address.key, "Accept": "application/json", "User-Agent": "fileq", **headers}
        if body is not None:
            given["Content-Type"] = "application/json"
        connection.request(method, f"{self._address.path}{target}", body, given)

    def _take(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._new()
            if connection.sock is not None and not _is_readable(connection, 0.0):
                return connection
            connection.close()  # the server has closed it

    def _put(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _new(self) -> http.client.HTTPConnection:
        address = self._address
        if address.is_https:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=CONNECT_S, context=self._tls
            )
        else:
            made = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)
        made.connect()
        return made

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Verifies the certificate and the host name."""
        return ssl.create_default_context()


def _is_readable(connection: http.client.HTTPConnection, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _wait_readable(connection: http.client.HTTPConnection, is_stopped: Callable[[], bool]) -> None:
    until_s = time.monotonic() + ANSWER_S
    while not _is_readable(connection, SLICE_S):
        if is_stopped():
            raise GivenUp
        if time.monotonic() >= until_s:
            raise TimeoutError(f"no answer for {ANSWER_S:g}s")


def _is_temporary(reply: HttpReply) -> bool:
    """Whether the server itself refused the request for a moment. A broker that is away is for the caller to decide."""
    return reply.status == _TOO_MANY or (reply.status == _AWAY and b'problem:broker-away"' not in reply.body)


def _retry_after_s(reply: HttpReply) -> float:
    text = reply.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdecimal() else 0.0


def _shown(error: Exception) -> str:
    return str(error) or type(error).__name__


_PREFIX = "urn:fileq:problem:"
_UNAVAILABLE = (429, 502, 503, 504)


class _FieldError(Struct, frozen=True):
    detail: str = ""


class ServerProblem(Struct, frozen=True):
    """The body of an answer that reports a problem; empty if it is not one of a fileq server."""

    type: str = ""
    title: str = ""
    detail: str = ""
    errors: tuple[_FieldError, ...] = ()

    @property
    def slug(self) -> str:
        return self.type.removeprefix(_PREFIX) if self.type.startswith(_PREFIX) else ""


def problem_in(reply: HttpReply) -> ServerProblem:
    try:
        return msgspec.json.decode(reply.body, type=ServerProblem)
    except (msgspec.DecodeError, ValueError):
        return ServerProblem()


def error_of(reply: HttpReply) -> FileqError:
    """The exception that a direct client would raise."""
    problem = problem_in(reply)
    if problem.slug == "invalid":
        return ConfigError([one.detail for one in problem.errors if one.detail] or [problem.detail])
    if problem.slug == "unauthenticated":
        return ConfigError(f"the server does not accept the key: {problem.detail}")
    if problem.slug == "batch-closed":
        return BatchError(problem.detail)
    if problem.slug == "precondition-failed":
        return Conflict(problem.detail)
    if reply.status in _UNAVAILABLE:
        return BrokerUnavailable(problem.detail or f"the server answered {reply.status}")
    if problem.slug:
        return BrokerError(problem.detail or problem.title)
    if 300 <= reply.status < 400:
        where = reply.headers.get("location", "")[:200]
        return BrokerError(f"the server redirects to {where!r}; redirects are not followed: give that address")
    return BrokerError(f"the server answered {reply.status} without a reason; is it a fileq server?")
