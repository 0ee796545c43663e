"""Client: enqueues jobs and waits for them, from any program. All logic of clients is here and below.

A client is cheap to make: it reads its configuration at once and connects at its first call. Threads may share one. A
process that was forked opens connections of its own. What a kill -9 leaves: each job enqueued completely or not at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fileq.client.address import config_at
from fileq.client.current_span import current_span
from fileq.client.event_stream import EventStream
from fileq.client.handle import Handle
from fileq.client.job_filter import JobFilter
from fileq.client.job_options import Duration, EnqueueOptions, JobOptions, options_of, seconds
from fileq.client.listed_job import ListedJob, listed
from fileq.client.queries import FileTrace
from fileq.client.schedule_options import ScheduleKeywords, schedule_options
from fileq.client.task_call import FileCall, TaskCall
from fileq.client.transport import JobRequest, Transport
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.job import State
from fileq.handlers.registry import REGISTRY
from fileq.handlers.task_definition import LONGEST_NAME, TaskDefinition

P = TypeVar("P")
R = TypeVar("R")
StateWord = Literal[
    "pending", "scheduled", "running", "retrying", "completed", "dead", "cancelled", "processing", "failed", "deferred"
]


class JobFilters(TypedDict, total=False):
    """The conditions of jobs(), as those of `fileq list`. `since` and `until` are times, or durations before now."""

    state: StateWord
    type: str
    match: str
    error: str
    since: datetime | Duration
    until: datetime | Duration
    queue: str
    limit: int


class Client:
    """`where` is a Config, a redis:// address, sqlite:PATH or the path of a .yaml file. None: as `fileq` itself, from
    FILEQ_CONFIG or config.yaml and the environment. `app_dir` is where config.yaml and relative paths are looked up.
    """

    def __init__(self, where: str | Config | None = None, *, key: str = "", app_dir: str = ".") -> None:
        config = config_at(where, key=key, app_dir=app_dir)
        self._open: Callable[[], Transport] = lambda: _opened(config)
        self._lock = threading.Lock()
        self._connected: tuple[int, Transport] | None = None  # the process that opened it

    @classmethod
    def over(cls, transport: Transport) -> Client:
        """A client of a transport that is open already."""
        client = cls.__new__(cls)
        client._open = lambda: transport
        client._lock = threading.Lock()
        client._connected = None
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

    def enqueue_file(
        self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        """Enqueues a job for a file, as `fileq enqueue PATH` does: also if its version was processed before. The file
        must be below worker.allowed_roots, or scan_dir."""
        return self._send([JobRequest(_traced(options), path=os.fsdecode(path) or ".")], [None])[0]

    def enqueue_many(self, calls: Iterable[TaskCall[Any, Any] | FileCall | Path]) -> list[Handle[Any]]:
        """Enqueues many jobs, 500 a round trip, after all of them were checked: task.call(…) or a Path each."""
        requests: list[JobRequest] = []
        tasks: list[TaskDefinition[Any, Any] | None] = []
        problems: list[str] = []
        for call in calls:
            try:
                task = _task_of(call.task) if isinstance(call, TaskCall) else None
                requests.append(_request(call, task))
                tasks.append(task)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return self._send(requests, tasks)

    def job(self, id: str) -> Handle[Any]:
        """A job by its id, whether it exists or not: status() tells."""
        return Handle(id, self._transport)

    def jobs(self, **filters: Unpack[JobFilters]) -> Iterator[ListedJob]:
        """The jobs that meet all filters: waiting ones in order, ended ones newest first. Read page by page, so a job
        that moves meanwhile may be missed or returned twice."""
        transport = self._transport()
        found = (listed(stored, transport) for stored in transport.select(_filter(filters)))
        return (job for job in found if job is not None)

    def file(self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes) -> FileTrace:
        """What is known about a file: its versions and their jobs. BrokerError if nothing is."""
        return self._transport().trace(os.path.abspath(os.fsencode(path)))

    def size(self, queue: str) -> int:
        """How many jobs wait in this queue."""
        return self._transport().size(queue)

    def clear(self, queue: str) -> int:
        """Cancels the jobs that wait in this queue now, and returns how many. Jobs that are enqueued later stay."""
        return self._transport().clear(queue)

    def schedule(
        self,
        name: str,
        cron: str,
        task: TaskDefinition[Any, Any] | str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Defines a schedule, or changes the one with this name; workers fire it. `payload` is a mapping or a Struct;
        each job gets it with `scheduled_for` and `missed` added. Can be repeated: the same call changes nothing."""
        definition = _task_of(task)
        type = task if isinstance(task, str) else task.name
        given = schedule_options(cron, type, payload, timezone, options)
        if definition is not None:
            sample = {**given.payload, "scheduled_for": "2000-01-01T00:00:00.000Z", "missed": 0}
            definition.checked_payload(_encoded(sample, type))
            given = replace(given, priority=given.priority or definition.priority)
        self._transport().schedule(name, given)

    def events(self, *patterns: str) -> EventStream:
        """What happens to jobs from now on; with patterns only the events that match one, such as "job:*" or
        "job:dead". An iterator without an end: close it, or use it in a `with`."""
        return EventStream(self._transport, patterns)

    def close(self) -> None:
        """Closes the connections. A later call opens new ones."""
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None and connected[0] == os.getpid():
            connected[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _transport(self) -> Transport:
        connected = self._connected
        if connected is not None and connected[0] == os.getpid():
            return connected[1]
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = os.getpid(), self._open()
            return self._connected[1]

    def _send(self, requests: list[JobRequest], tasks: Iterable[TaskDefinition[Any, Any] | None]) -> list[Handle[Any]]:
        accepted = self._transport().enqueue(requests) if requests else []
        return [Handle(job.id, self._transport, task, job.fate) for job, task in zip(accepted, tasks, strict=True)]


def _opened(config: Config) -> Transport:
    from fileq.client.broker_transport import open_transport

    return open_transport(config)


def _task_of(task: TaskDefinition[Any, Any] | str) -> TaskDefinition[Any, Any] | None:
    """The task, by its name only if this process knows it."""
    if isinstance(task, TaskDefinition):
        return task
    if not isinstance(task, str) or not 0 < len(task) <= LONGEST_NAME or not task.isprintable():
        raise ConfigError(
            f"task is {task!r:.120}; give a task, or its name in 1 to {LONGEST_NAME} printable characters"
        )
    return REGISTRY.task(task)


def _request(
    call: TaskCall[Any, Any] | FileCall | os.PathLike[str], task: TaskDefinition[Any, Any] | None
) -> JobRequest:
    if isinstance(call, os.PathLike):
        return JobRequest(_traced({}), path=os.fsdecode(call))
    if isinstance(call, FileCall):
        return JobRequest(_traced(call.options), path=call.path)
    options = _traced(call.options)
    if task is not None and task.priority and not options.priority:
        options = replace(options, priority=task.priority)
    payload = None if call.payload is UNSET or call.payload is None else _encoded(call.payload, call.name)
    if task is not None:
        task.checked_payload(payload if payload is not None else b"null")
    return JobRequest(options, call.name, payload)


def _encoded(payload: Any, name: str) -> bytes:
    try:
        return msgspec.json.encode(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of task {name!r} can't be written as JSON: {error}") from error


def _traced(given: EnqueueOptions) -> JobOptions:
    trace_id, span_id = current_span()
    return replace(options_of(given), trace_id=trace_id, span_id=span_id)


def _filter(filters: JobFilters) -> JobFilter:
    if unknown := sorted(filters.keys() - JobFilters.__annotations__.keys()):
        raise TypeError(f"unexpected filter {unknown[0]!r}; there are {', '.join(sorted(JobFilters.__annotations__))}")
    word = filters.get("state")
    try:
        state = State.from_filter(word) if word is not None else None
    except ValueError:
        raise ConfigError(f"state is {word!r}; it must be one of {', '.join(State)}") from None
    return JobFilter(
        state=state,
        type=filters.get("type"),
        match=filters.get("match"),
        error=filters.get("error"),
        since_ms=_time_ms("since", filters.get("since")),
        until_ms=_time_ms("until", filters.get("until")),
        queue=filters.get("queue"),
        limit=filters.get("limit"),
        is_deferred=word == "deferred",
    )


def _time_ms(name: str, given: datetime | Duration | None) -> int | None:
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigError(f"{name} is {given!r}; it must have a zone, such as datetime.now(UTC)")
        return round(given.timestamp() * 1000)
    try:
        return round((datetime.now(UTC).timestamp() - seconds(given)) * 1000)
    except ValueError as error:
        raise ConfigError(f"{name} is {given!r}; it must be a datetime or {error}") from error
