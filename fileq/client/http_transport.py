"""A client's transport on a server: the calls of the REST API that do what a broker would do, and the connections.

Every call can be repeated, so a lost answer is no reason to fail: the id of a new job is made before the first try.
What a kill -9 leaves: each job enqueued completely or not at all; of several requests the first ones.

Redirects are not followed, and no variable of the environment chooses a proxy: the key goes to the given server only.
Problems that a server answers with become the exceptions that a broker raises, so that a program handles one set of
exceptions for both transports.
"""

from __future__ import annotations

import http.client
import os
import queue
import select
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from fileq.brokers.types import CancelResult, EnqueueResult
from fileq.client.address import ServerAddress
from fileq.client.event_stream import RETRY_S, SLICE_S, GivenUp
from fileq.client.job_endings import JobEnding, ending_in
from fileq.client.options import WantedSchedule
from fileq.client.transport import BATCH, VETOED, Accepted, BatchRequest, BatchRetry, JobDocuments
from fileq.core.errors import BatchError, BrokerError, BrokerUnavailable, ConfigError, Conflict, FileqError, JobError
from fileq.core.job import State
from fileq.core.job_options import JobRequest
from fileq.core.paging import pages
from fileq.queries.documents import BatchDocument, EnqueuedDocument, JobDocument
from fileq.queries.job_filter import NAMES, JobConditions
from fileq.queries.job_queries import FileTrace

WAIT_S = 25.0  # how long one request waits for the end of a job
PAGE = 200  # jobs of one page of a list
WRITES = 5  # tries to define a schedule that others change meanwhile
CONNECT_S = 5.0
ANSWER_S = 35.0  # the server answers within 30 s
BUDGET_S = 30.0  # no new try is made after it
TRIES = 4  # how often a request is sent that gets no answer
PAUSE_S = 0.1  # before the second try; doubled after each
RETRY_AFTER_MAX_S = 5.0
IDLE_MAX = 8
_TOO_MANY, _AWAY, _GATEWAY = 429, 503, (502, 504)
T = TypeVar("T")
Send: TypeAlias = Callable[[http.client.HTTPConnection], None]
EVENTS_PATH = "/events"
SILENCE_S = 60.0  # the server sends a comment more often than that
WAITING_MAX = 10_000  # events; then the server notices a slow client
_PREFIX = "urn:fileq:problem:"  # of the types of problems
_UNAVAILABLE = (429, 502, 503, 504)


class _BulkItem(Struct, frozen=True):
    id: str
    result: str
    warning: str | None = None


class HttpTransport:
    """Implements Transport. Owns its connections."""

    def __init__(self, address: ServerAddress) -> None:
        self._connections = HttpConnections(address)
        self._call: Callable[..., HttpReply] = self._connections.call

    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        ids = [request.options.id or str(uuid.uuid4()) for request in requests]
        bodies = [{**job_fields(request), "id": id} for request, id in zip(requests, ids, strict=True)]
        if len(requests) == 1:
            return [self._enqueue_one(requests[0], ids[0], bodies[0])]
        accepted: list[Accepted] = []
        for start in range(0, len(requests), BATCH):
            body = msgspec.json.encode({"jobs": bodies[start : start + BATCH]})
            reply = self._call("POST", "/jobs/bulk", body=body, headers=trace_headers(requests[start]))
            found = _field(reply, "jobs", tuple[_BulkItem, ...], (200, 201))
            for item, request, id in zip(found, requests[start:], ids[start:], strict=False):
                fate = _fate(item.result, item.id, request, id, reply)
                accepted.append(Accepted(item.id or id, fate, item.warning or "", is_hidden=not item.id))
        return accepted

    def job(self, id: str) -> JobDocument | None:
        reply = self._call("GET", _path("jobs", id))
        return None if reply.status == 404 else _decoded(reply, JobDocument)

    def ending(self, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding:
        """By requests that the server answers when the job has ended. Outages are waited out."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_stopped():
            left_s = WAIT_S if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                found = self._wait(id, min(WAIT_S, left_s), is_stopped)
                if found is not None:
                    return found
            except BrokerUnavailable:
                time.sleep(min(RETRY_S, left_s))
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError
        raise GivenUp

    def subscribe(self) -> HttpSubscription:
        return HttpSubscription(self._connections)

    def select(self, given: JobConditions, limit: int | None = None) -> Iterator[JobDocument]:
        return islice(self._pages(given, limit), limit)

    def trace(self, path: bytes) -> FileTrace:
        reply = self._call("GET", "/files/trace", query=[("path", path.decode(errors="surrogateescape"))])
        return _decoded(reply, FileTrace)

    def size(self, queue: str) -> int:
        return _size(self._call("GET", "/stats"), queue)

    def clear(self, queue: str) -> int:
        """Stops after as many jobs as waited at the beginning, as each request has a limit."""
        stats, cleared = self._call("GET", "/stats"), 0
        left = _size(stats, queue) if stats.status != 403 else 1  # then this is refused too, and names the scope for it
        while left > 0:
            reply = self._call("POST", _path("queues", queue, "/clear"), query=[("limit", str(left))])
            done = _field(reply, "cleared", int)
            cleared += done
            left = left - done if _field(reply, "is_partial", bool) else 0
        return cleared

    def cancel(self, id: str) -> CancelResult:
        reply = self._call("DELETE", _path("jobs", id))
        if reply.status == 404:
            return CancelResult.UNKNOWN
        if problem_in(reply).slug == "conflict":
            return CancelResult.ENDED
        result = _field(reply, "result", CancelResult, (200, 202))
        return CancelResult.CANCELLED if reply.is_repeat and result is CancelResult.ENDED else result

    def retry(self, id: str, *, is_probe: bool = False) -> None:
        reply = self._call("POST", _path("jobs", id, "/retry?probe=true" if is_probe else "/retry"))
        slug = problem_in(reply).slug
        if slug == "conflict" and reply.is_repeat:
            job = self.job(id)
            if job is not None and job.status != State.DEAD:
                return  # the answer to the first try was lost
        if slug in ("conflict", "not-found"):
            raise JobError(problem_in(reply).detail)
        if reply.status != 200:
            raise error_of(reply)

    def warning(self, type: str) -> str:
        return ""  # the server says it of jobs only

    def schedule(self, name: str, options: WantedSchedule) -> None:
        path, body = _path("schedules", name), msgspec.json.encode(options)
        for _ in range(WRITES):
            found = self._call("GET", path)
            if found.status not in (200, 403, 404):  # 403: the PUT is refused too, and its error names the scope for it
                raise error_of(found)
            condition = {"If-Match": found.headers["etag"]} if found.status == 200 else {"If-None-Match": "*"}
            reply = self._call("PUT", path, body=body, headers=condition)
            if reply.status in (200, 201):
                return
            if reply.status != 412:
                raise error_of(reply)
        raise BrokerError(f"schedule {name} was not defined: another program kept changing it; try again")

    def create_batch(self, request: BatchRequest) -> None:
        shared = ("id", "name", "parent", "allow_failures", "priority")
        body: dict[str, Any] = {name: getattr(request, name) for name in shared}
        body |= {kind.value: job_fields(job) for kind, job in request.callbacks.items()}
        reply = self._call("POST", "/batches", body=msgspec.json.encode(body))
        if reply.status not in (200, 201):
            raise error_of(reply)

    def batch(self, id: str) -> BatchDocument | None:
        reply = self._call("GET", _path("batches", id))
        return None if reply.status == 404 else _decoded(reply, BatchDocument)

    def seal_batch(self, id: str) -> bool:
        return self._change_batch(id, "seal")

    def cancel_batch(self, id: str) -> bool:
        return self._change_batch(id, "cancel")

    def retry_batch(self, id: str) -> BatchRetry:
        return _decoded(self._call("POST", _path("batches", id, "/retry")), BatchRetry)

    def dead_page(self, id: str, cursor: str) -> JobDocuments:
        query = [("cursor", cursor)] if cursor else []
        return _decoded(self._call("GET", _path("batches", id, "/dead"), query=query), JobDocuments)

    def close(self) -> None:
        self._connections.close()

    def _enqueue_one(self, request: JobRequest, id: str, body: dict[str, Any]) -> Accepted:
        reply = self._call("POST", "/jobs", body=msgspec.json.encode(body), headers=trace_headers(request))
        if problem_in(reply).slug == "vetoed":
            return Accepted(id, VETOED)
        if problem_in(reply).slug == "duplicate":
            return Accepted(id, EnqueueResult.DUPLICATE, is_hidden=True)
        found = _decoded(reply, EnqueuedDocument, (200, 201))
        fate = EnqueueResult.ENQUEUED if reply.status == 201 else EnqueueResult.DUPLICATE
        return Accepted(found.id, _fate(fate, found.id, request, id, reply), found.warning or "")

    def _wait(self, id: str, wait_s: float, is_stopped: Callable[[], bool]) -> JobEnding | None:
        query = [("timeout", f"{wait_s:.3f}")]
        reply = self._call("GET", _path("jobs", id, "/wait"), query=query, is_stopped=is_stopped)
        if reply.status == 404:
            return ending_in(id, None)
        if reply.status == 202:
            return None
        return JobEnding(_decoded(reply, JobDocument), bytes(_field(reply, "result", Raw)))

    def _change_batch(self, id: str, verb: str) -> bool:
        reply = self._call("POST", _path("batches", id, f"/{verb}"))
        if reply.status == 404:
            return False
        # The answer to the first try may be lost: then the change is this caller's own.
        return _field(reply, "has_changed", bool) or reply.is_repeat

    def _pages(self, given: JobConditions, limit: int | None) -> Iterator[JobDocument]:
        query = [(name, value) for name in NAMES if name != "tag" and (value := getattr(given, name)) is not None]
        query += [*((f"tag.{name}", tag) for name, tag in given.tag.items()), ("limit", str(min(PAGE, limit or PAGE)))]

        def read(cursor: str) -> JobDocuments:
            following = [("cursor", cursor)] if cursor else []
            return _decoded(self._call("GET", "/jobs", query=[*query, *following]), JobDocuments)

        for page in pages(read):
            yield from page.jobs


def _decoded(reply: HttpReply, type: type[T], statuses: Sequence[int] = (200,)) -> T:
    """Raises what error_of() says for another status."""
    if reply.status not in statuses:
        raise error_of(reply)
    try:
        return msgspec.json.decode(reply.body, type=type)
    except (msgspec.DecodeError, ValueError) as error:
        raise BrokerError(f"the server's answer can't be read: {error}; is it a fileq server?") from error


def _field(reply: HttpReply, name: str, type: type[T], statuses: Sequence[int] = (200,)) -> T:
    """One field of the answer."""
    found = _decoded(reply, dict[str, Raw], statuses).get(name, Raw(b""))
    return _decoded(replace(reply, body=bytes(found)), type, statuses)


def _size(stats: HttpReply, queue: str) -> int:
    queues = _field(stats, "queues", dict[str, int])
    if queue not in queues:
        raise ConfigError(f"no queue is named {queue!r}; the queues are {', '.join(queues)}")
    return queues[queue]


def _fate(fate: str, found_id: str, request: JobRequest, id: str, reply: HttpReply) -> str:
    """A duplicate with an id that was made here is this caller's own job: the answer to an earlier try was lost."""
    is_own = reply.is_repeat and fate == EnqueueResult.DUPLICATE and found_id == id and not request.options.id
    return EnqueueResult.ENQUEUED if is_own else fate


def _path(kind: str, id: str, action: str = "") -> str:
    return f"/{kind}/{quote(id, safe='')}{action}"


class HttpSubscription:
    """Implements Subscription by GET /events, which sends server-sent events. Begins when it is made.

    A thread reads the stream, because a read that times out can't be continued. A stream that breaks is opened once
    more from the last event on; if that fails, get() raises and the caller subscribes again."""

    def __init__(self, connections: HttpConnections) -> None:
        self._connections = connections
        self._events: queue.Queue[bytes] = queue.Queue(WAITING_MAX)
        self._last_id = ""
        self._error: FileqError | None = None
        self._is_closed = threading.Event()
        self._connection, answer = self._open()
        threading.Thread(target=self._run, args=(answer,), name="fileq events", daemon=True).start()

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            if self._error is not None and not self._is_closed.is_set():
                raise self._error from None
            return None

    def close(self) -> None:
        self._is_closed.set()
        with suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)  # ends the read of the thread, which closes it

    def _open(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self._last_id} if self._last_id else {})}
        connection, answer = self._connections.open_stream(EVENTS_PATH, headers, SILENCE_S)
        if answer.status == 200:
            return connection, answer
        found = {name.lower(): value for name, value in answer.getheaders()}
        try:
            raise error_of(HttpReply(answer.status, found, answer.read()))
        finally:
            connection.close()

    def _run(self, answer: http.client.HTTPResponse) -> None:
        try:
            while not self._is_closed.is_set():
                had_any = self._read(answer)
                if self._is_closed.is_set() or not had_any:
                    break
                self._connection, answer = self._open()
            self._error = BrokerUnavailable("the server closed the event stream")
        except FileqError as error:
            self._error = error
        finally:
            answer.close()
            self._connection.close()

    def _read(self, answer: http.client.HTTPResponse) -> bool:
        """Until the stream ends or breaks. Whether there was an event, so that it can be continued after it."""
        had_any = False
        with suppress(OSError, http.client.HTTPException, ValueError):
            for id, data in frames(iter(answer.readline, b"")):
                self._last_id = id or self._last_id
                if data.startswith(b'{"event":'):  # not `lag` and `reset`, which are about the stream itself
                    self._put(data)
                had_any = had_any or bool(id)
        self._connection.close()
        return had_any

    def _put(self, data: bytes) -> None:
        while not self._is_closed.is_set():
            with suppress(queue.Full):
                self._events.put(data, timeout=SLICE_S)
                return


def frames(lines: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Id and data of each event in a stream. An event that is not complete at its end is dropped."""
    id, data = "", list[bytes]()
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            id = value.decode(errors="replace")
        elif name == b"data":
            data.append(value)
        elif not name and not line.strip():
            if data:
                yield id, b"\n".join(data)
            id, data = "", []


def job_fields(request: JobRequest) -> dict[str, Any]:
    """What the server is to enqueue, without the id. Paths are those of the server's machine."""
    fields = request.options.sent()
    if request.path:
        fields["path"] = _path_on_server(request.path)
    else:
        fields["type"] = request.type
        if request.payload is not None:
            fields["payload"] = msgspec.Raw(request.payload)
    return fields


def trace_headers(request: JobRequest) -> dict[str, str]:
    """The span of the caller, as W3C Trace Context writes it."""
    options = request.options
    return {"traceparent": f"00-{options.trace_id}-{options.span_id}-01"} if options.trace_id else {}


def _path_on_server(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise ConfigError(f"the name of {shown!r} is not UTF-8; so a server can't enqueue it") from None
    return os.path.abspath(path)


class HttpReply(Struct, frozen=True):
    """`headers` have names in lower case. `is_repeat`: the server may have done an earlier try already."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_repeat: bool = False


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
                    return replace(reply, is_repeat=is_repeat)
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
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._address.is_https:
            kind = partial(http.client.HTTPSConnection, context=self._tls)
        made = kind(self._address.host, self._address.port, timeout=CONNECT_S)
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
