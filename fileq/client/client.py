"""Client: enqueues jobs and waits for them, from any program. All logic of clients is here and below.

A client is cheap to make: it reads its configuration at once and connects at its first call. Threads may share one. A
process that was forked opens connections of its own. What a kill -9 leaves: each job enqueued completely or not at all.

Inside fileq.testing.queue no client reaches a real queue. Each call decides that, because a program usually makes its
client when it is imported, before the test begins.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, overload
from weakref import WeakSet

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from fileq.client.address import HTTP_SCHEMES, config_at, new_database_warning, server_address
from fileq.client.batch_handle import BatchHandle, BatchKeywords, batch_request
from fileq.client.event_stream import EventStream
from fileq.client.handle import Handle, with_payload_type
from fileq.client.options import JobFilters, schedule_options
from fileq.client.tasks import TaskCall
from fileq.client.transport import Transport
from fileq.config import Config
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.job import State, rfc3339_ms
from fileq.core.job_options import EnqueueOptions, JobRequest, batch_id_of, options_of
from fileq.core.public_name import public
from fileq.core.text import check_names
from fileq.core.units import Duration, seconds
from fileq.files.paths import AnyPath
from fileq.handlers.registry import TaskDefinition, encoded_payload, task_named, typed_request
from fileq.queries.documents import JobDocument
from fileq.queries.job_filter import JobConditions
from fileq.queries.job_queries import FileTrace

if TYPE_CHECKING:
    from fileq.client.options import ScheduleKeywords
    from fileq.core.job_options import JobOptions, NamedBatch

P = TypeVar("P")
R = TypeVar("R")
WARNING_S = 60.0  # between two warnings about jobs of one type
WARNED_MAX = 1000  # types


@public()
class Client:
    """`where` is a Config, a redis:// address, sqlite:PATH, the path of a .yaml file, or http://host:8080 of a server,
    which needs a `key`. None: as `fileq` itself, from FILEQ_CONFIG or config.yaml and the environment. `app_dir` is
    where config.yaml and relative paths are looked up."""

    _has_address = _is_over = False
    _connected: tuple[int, Transport] | None = None  # the process that opened it

    def __init__(self, where: str | Config | None = None, *, key: str = "", app_dir: str = ".") -> None:
        self._open: Callable[[], Transport] = _opener(where, key, app_dir)
        self._has_address = where is not None
        self._warned_until_s: dict[str, float] = {}
        self._lock = threading.Lock()

    @classmethod
    def over(cls, transport: Transport) -> Client:
        """A client of a transport that is open already."""
        client = cls.__new__(cls)
        client._open, client._is_over, client._lock = lambda: transport, True, threading.Lock()
        return client

    @overload
    def enqueue(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> Handle[R]: ...

    @overload
    def enqueue(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> Handle[Any]: ...

    def enqueue(
        self, task: TaskDefinition[Any, Any] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        """Enqueues a job of a task, by the task or its name. The payload is checked against the task's type."""
        return self.enqueue_many([TaskCall(task, payload, **options)])[0]

    def enqueue_file(self, path: AnyPath, **options: Unpack[EnqueueOptions]) -> Handle[Any]:
        """Enqueues a job for a file, as `fileq enqueue PATH` does: also if its version was processed before. The file
        must be below worker.allowed_roots, or scan_dir."""
        return self._send([JobRequest(_traced(options), path=os.fsdecode(path) or ".")], [None])[0]

    def enqueue_many(
        self, calls: Iterable[TaskCall[Any, Any] | Path], *, batch: NamedBatch | str | None = None
    ) -> list[Handle[Any]]:
        """Enqueues many jobs, 500 a round trip, after all of them were checked: task.call(…) or a Path each. `batch` is
        for those that name no batch themselves."""
        requests: list[JobRequest] = []
        tasks: list[TaskDefinition[Any, Any] | None] = []
        problems: list[str] = []
        for call in calls:
            try:
                requests.append(_request(call, batch))
                tasks.append(task_named(call.task) if isinstance(call, TaskCall) else None)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return self._send(requests, tasks)

    def job(self, id: str) -> Handle[Any]:
        """A job by its id, whether it exists or not: status() tells."""
        if not isinstance(id, str):
            raise TypeError(f"id is {id!r:.100}; give the id of a job as text")
        return Handle(id, self.transport)

    def jobs(self, **filters: Unpack[JobFilters]) -> Iterator[JobDocument]:
        """The jobs that meet all filters: waiting ones in order, ended ones newest first. Read page by page, so a job
        that moves meanwhile may be missed or returned twice."""
        found = self.transport().select(_conditions(filters), filters.get("limit"))
        return (with_payload_type(job) for job in found if job.is_job)

    def file(self, path: AnyPath) -> FileTrace:
        """What is known about a file: its versions and their jobs. BrokerError if nothing is."""
        return self.transport().trace(os.path.abspath(os.fsencode(path)))

    def size(self, queue: str) -> int:
        """How many jobs wait in this queue."""
        return self.transport().size(queue)

    def clear(self, queue: str) -> int:
        """Cancels the jobs that wait in this queue now; returns how many. Jobs that are due or enqueued later stay."""
        return self.transport().clear(queue)

    def schedule(
        self,
        name: str,
        cron: str,
        task: TaskDefinition[Any, Any] | str,
        payload: Mapping[str, Any] | Struct | None = None,
        *,
        timezone: str = "UTC",
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Defines a schedule, or changes the one with this name; workers fire it. `payload` is a mapping or a Struct;
        each job gets it with `scheduled_for` and `missed` added. Can be repeated: the same call changes nothing."""
        definition = task_named(task)
        type = task if isinstance(task, str) else task.name
        given = schedule_options(cron, type, payload, timezone, options)
        if definition is not None:
            sample = {**given.payload, "scheduled_for": "2000-01-01T00:00:00.000Z", "missed": 0}
            definition.checked_payload(encoded_payload(sample, type))
            given = replace(given, priority=given.priority or definition.priority)
        self.transport().schedule(name, given)
        self._check_taken([type])

    def batch(self, name: str = "", **options: Unpack[BatchKeywords]) -> BatchHandle:
        """Creates a batch: jobs that are counted together, with callbacks.

            with client.batch(then=report) as batch:
                batch.add(convert, "a.pdf")

        The batch is sealed at the end of the block, and cancelled if the block raises."""
        request = batch_request(name, **options)
        self.transport().create_batch(request)
        self._check_taken(job.type for job in request.callbacks.values())
        return BatchHandle(self, request.id, request.priority)

    def find_batch(self, id: str) -> BatchHandle:
        """A batch by its id. BatchError if there is none."""
        found = BatchHandle(self, id)
        return BatchHandle(self, id, found.status().priority)

    def events(self, *patterns: str) -> EventStream:
        """What happens to jobs from now on; with patterns only the events that match one, such as "job:*" or
        "job:dead". An iterator without an end: close it, or use it in a `with`."""
        return EventStream(lambda: self.transport().subscribe(), patterns)

    def close(self) -> None:
        """Closes the connections. A later call opens new ones."""
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None and connected[0] == os.getpid():
            connected[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transport(self) -> Transport:
        """For fileq itself: what the calls go through, opened at the first use. Inside fileq.testing.queue that of the
        test queue; ConfigError if this client has an address."""
        if not self._is_over and (tested := client_of_test()) is not None:
            if self._has_address:
                raise ConfigError(
                    "this client has an address of its own, and inside fileq.testing.queue no client may reach another "
                    "queue; create it without an address, or use q.client"
                )
            return tested.transport()
        connected = self._connected
        if connected is not None and connected[0] == os.getpid():
            return connected[1]
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = os.getpid(), self._open()
            return self._connected[1]

    def _send(self, requests: list[JobRequest], tasks: Iterable[TaskDefinition[Any, Any] | None]) -> list[Handle[Any]]:
        accepted = self.transport().enqueue(requests) if requests else []
        for request, job in zip(requests, accepted, strict=True):
            if job.warning and not self._is_over:
                self._warn(request.type, job.warning)
        return [
            Handle(job.id, _refused if job.is_hidden else self.transport, task, job.fate, job.warning)
            for job, task in zip(accepted, tasks, strict=True)
        ]

    def _check_taken(self, types: Iterable[str]) -> None:
        """Warns of later jobs, those of callbacks and schedules, that no worker would take."""
        for type in types if not self._is_over else ():
            if warning := self.transport().warning(type):
                self._warn(type, warning)

    def _warn(self, type: str, warning: str) -> None:
        """Logs it, once in WARNING_S for each type and for files: a program may enqueue many such jobs."""
        import logging  # most programs never need it

        now_s = time.monotonic()
        with self._lock:
            if now_s < self._warned_until_s.get(type, 0.0) or len(self._warned_until_s) >= WARNED_MAX:
                return
            self._warned_until_s[type] = now_s + WARNING_S
        logging.getLogger("fileq").warning("%s", warning)


def _refused() -> NoReturn:
    """The transport of a handle that stands for a job which its client may not read. A request would be answered as if
    there were no such job."""
    raise BrokerError(
        "an existing job has this id or unique key, and this client's key may not read it: this needs "
        "the scope read, and no restriction that excludes the job"
    )


def _opener(where: str | Config | None, key: str, app_dir: str) -> Callable[[], Transport]:
    """Reads the configuration now, imports and connects at the first call."""
    if isinstance(where, str) and where.startswith(HTTP_SCHEMES):
        address = server_address(where, key)

        def over_http() -> Transport:
            from fileq.client.http_transport import HttpTransport

            return HttpTransport(address)

        return over_http
    config = config_at(where, key=key, app_dir=app_dir)

    def direct() -> Transport:
        from fileq.client.broker_transport import open_transport

        named = where if where is None or isinstance(where, str) else ""
        if warning := new_database_warning(named, config, app_dir):
            import logging  # as in Client._warn

            logging.getLogger("fileq").warning("%s", warning)
        return open_transport(config)

    return direct


def _request(call: TaskCall[Any, Any] | os.PathLike[str], batch: NamedBatch | str | None) -> JobRequest:
    if isinstance(call, os.PathLike):
        return JobRequest(_traced({"batch": batch}), path=os.fsdecode(call))
    if not isinstance(call, TaskCall):
        raise ConfigError(f"{call!r:.120} is not a call; give task.call(payload), fileq.Call(name, payload) or a Path")
    options = _traced(call.options if call.options.get("batch") else {**call.options, "batch": batch})
    return typed_request(call.task, call.payload, options)


def _traced(given: EnqueueOptions) -> JobOptions:
    trace_id, span_id = current_span()
    return replace(options_of(given), trace_id=trace_id, span_id=span_id)


def _conditions(filters: JobFilters) -> JobConditions:
    """TypeError for a filter that does not exist; ConfigError for one that can't be used."""
    check_names(filters, JobFilters, "filter")
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    limit = given.pop("limit", 0)
    if not (type(limit) is int and limit >= 0):
        raise ConfigError(f"limit is {limit!r}; it must be a whole number of at least 0")
    given |= {name: _time(name, given[name]) for name in ("since", "until") if name in given}
    try:
        State.from_filter(given.get("status", State.PENDING))
    except (ValueError, TypeError):
        raise ConfigError(f"status is {given['status']!r}; it must be one of {', '.join(State)}") from None
    if "batch" in given:
        given["batch"] = batch_id_of(given["batch"])
    given["type"] = getattr(given.get("type"), "name", given.get("type"))
    try:
        return msgspec.convert(given, JobConditions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a filter can't be used: {error}") from None


def _time(name: str, given: datetime | Duration) -> str:
    """RFC 3339. A duration is before now."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigError(f"{name} is {given!r}; it must have a zone, such as datetime.now(UTC)")
        return rfc3339_ms(round(given.timestamp() * 1000))
    try:
        return rfc3339_ms(round((datetime.now(UTC).timestamp() - seconds(given)) * 1000))
    except ValueError as error:
        raise ConfigError(f"{name} is {given!r}; it must be a datetime or {error}") from error


# The client that tasks use by themselves: made at its first use, from the configuration of the program. In a test with
# fileq.testing.queue it is the client of the test queue, to which every other client of the process is led too.

_default_lock = threading.Lock()
_default: list[Client] = []  # at most one
_of_tests: list[Client] = []  # of the test queues that are open; the last one counts
UNENTERED: WeakSet[Any] = WeakSet()  # test queues that exist and whose `with` has not begun
NOT_ENTERED = (
    "fileq.testing.queue() protects nothing before its `with` begins; write: with fileq.testing.queue(…) as q: …"
)


def default_client() -> Client:
    """Raises ConfigError if the configuration of the program is wrong."""
    if (tested := client_of_test()) is not None:
        return tested
    with _default_lock:
        if not _default:
            _default.append(Client())
        return _default[0]


def client_of_test() -> Client | None:
    """The client of the test queue; None outside of tests. ConfigError if there is a test queue without a `with`."""
    with _default_lock:
        if not _of_tests and UNENTERED:
            raise ConfigError(NOT_ENTERED)
        return _of_tests[-1] if _of_tests else None


@contextmanager
def replaced_by(client: Client) -> Iterator[None]:
    """Tasks and clients use this client meanwhile: for tests."""
    with _default_lock:
        _of_tests.append(client)
    try:
        yield
    finally:
        with _default_lock:
            _of_tests.remove(client)


# The span in which a program enqueues, so that its jobs continue its trace. OpenTelemetry is never imported here.


def current_span() -> tuple[str, str]:
    """Trace id and span id in hex; "" for both without a span, or in a process that has not imported opentelemetry."""
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return "", ""
    span = tracing.get_current_span().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else ("", "")
