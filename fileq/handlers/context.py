"""What a handler is given, the job as a read-only view and the context of one attempt, and what it leaves behind
besides its result: follow-ups and the files that it made.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, Unpack, overload

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import force_setattr, replace

from fileq.core.batch import BatchFacts, facts_of
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import Job, traceparent
from fileq.core.job_options import JobKeywords, JobOptions, read_options
from fileq.core.outcome import (
    FOLLOW_UPS_MAX,
    FOLLOW_UPS_MAX_BYTES,
    OUTPUTS_MAX,
    FollowUpRequest,
    Made,
    Output,
    follow_up_id,
)
from fileq.core.own_jobs import check_id, check_tags, check_type
from fileq.core.public_name import public
from fileq.core.text import did_you_mean
from fileq.core.units import LONGEST_S
from fileq.files.paths import AnyPath
from fileq.files.status import signature_of
from fileq.handlers.job_file import JobFile, check_file

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # comes with every type checker; at run time it may be missing

    from fileq.handlers.registry import TaskDefinition

    P = TypeVar("P", default=Any)
    AnyTask: TypeAlias = TaskDefinition[Any, Any] | str
else:
    from typing import TypeVar

    P = TypeVar("P")

Given = TypeVar("Given")


class CancelFlag(Protocol):
    """The part of threading.Event that a handler needs."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class LazyEvent:
    """A threading.Event for one attempt that is created by the first wait(). One is made for every task, and few
    handlers wait on it; an Event with its locks would cost more than a tiny task."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        with _creating:
            event = self._event = self._event or threading.Event()
        if self._is_set:  # set() may have run before there was an event
            event.set()
        return event.wait(timeout)


_creating = threading.Lock()


@public()
class JobView(Struct, Generic[P], frozen=True, dict=True):
    """A job for its handler. `path` is the file on this machine, usable with open() for any file name, "" without a
    file; with `safe_open` it is /proc/self/fd/N. `payload` is decoded; for the handler of a task that takes
    JobView[P], into a P. The other fields are those of the job's JSON."""

    # In the instance's dictionary, because it is no part of the job: copies and JSON do not have it.
    _file: ClassVar[JobFile | None] = None

    path: str
    payload: P
    id: str
    filepath: str
    filesize: int
    priority: str
    retries: int
    creation_time: str
    trace_id: str
    span_id: str
    type: str | None
    max_retries: int | None
    timeout: float | None
    process_at: str | None
    deadline: str | None
    recoveries: int
    signature: str | None
    filepath_b64: str | None
    batch_id: str | None
    error: str | None
    failed_at: str | None
    first_error: str | None
    moved_from: str | None
    parent_id: str | None
    unique_key: str | None
    tags: dict[str, str]
    batch_facts: BatchFacts | None  # of a callback of a batch

    def open(
        self,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """The file that was checked before the handler ran, even if another file has its name now.

        The parameters are those of the built-in open(); the default is to read bytes. Each call returns a new file
        object. Raises ValueError without a file, after the attempt, and for a copy of the job."""
        if (file := self._file) is None:
            raise ValueError("a copy of a job can't open its file" if self.path else "the job has no file")
        return open(os.fsdecode(file.path), mode, buffering, encoding, errors, newline, opener=file.opener)


_shared_fields = attrgetter(*JobView.__struct_fields__[2:-2])  # all but path, payload, tags and batch_facts


def view_of(job: Job, path: bytes, file: JobFile | None = None, decoder: Decoder[Any] | None = None) -> JobView[Any]:
    """The job for its handler; raises msgspec.DecodeError or ValueError if its payload can't be decoded. `file` is what
    job.open() opens. `decoder` is for payloads of a type; a job without a payload has None."""
    raw = b"null" if job.payload is UNSET else job.payload
    payload = job.payload_value if decoder is None else decoder.decode(raw)
    values = (os.fsdecode(path), payload, *_shared_fields(job), job.tag_values, facts_of(job))
    view: JobView[Any] = JobView(*values)
    if file is not None:
        force_setattr(view, "_file", file)
    return view


@public()
class Context:
    """One attempt at a job. `cancelled` is set when the handler should stop; `attempt` counts from 1."""

    def __init__(
        self,
        job: JobView[Any],
        *,
        cancelled: CancelFlag,
        attempt: int,
        timeout_s: float,
        span: tuple[str, str] | None = None,
        roots: Sequence[bytes] = (),
        queues: Sequence[str] = (),
        types: Collection[str] | None = None,
    ) -> None:
        # Bounded: other programs write jobs too, with any number as their timeout.
        self.timeout_s = min(max(0.0, timeout_s), LONGEST_S)
        self.cancelled = cancelled
        self.attempt = attempt
        self._ends_at_s = time.time() + self.timeout_s
        self._ends_s = time.monotonic() + self.timeout_s
        self._job = job
        self._span = span or (job.trace_id, job.span_id)
        self._roots = roots
        self._queues = queues
        self._types = types
        self._made: Making | None = None
        self.state: dict[str, Any] = {}  # what middleware leaves for the handler; new for each attempt

    @property
    def deadline(self) -> datetime:
        """When this attempt will be ended, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self._ends_at_s, UTC)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never negative. Not affected by changes of the system clock."""
        return max(0.0, self._ends_s - time.monotonic())

    @property
    def log(self) -> Log:
        """A logger with this job's ids and its file or type: context.log.info("page.read", page=3)."""
        job = self._job
        named = {"filepath": job.filepath, "type": job.type}
        fields: dict[str, Any] = {"job_id": job.id, **{k: v for k, v in named.items() if v}, "attempt": self.attempt}
        trace_id, span_id = self._span
        if trace_id:
            fields |= {"trace_id": trace_id, "span_id": span_id}
        return Log(fields)

    @property
    def traceparent(self) -> str:
        """This attempt's trace as the W3C header `traceparent`, for calls to other services; "" without a trace."""
        return traceparent(*self._span)

    @overload
    def enqueue(
        self, task: TaskDefinition[Given, Any], payload: Given | UnsetType = UNSET, **options: Unpack[JobKeywords]
    ) -> str: ...

    @overload
    def enqueue(self, task: str, payload: Any = UNSET, **options: Unpack[JobKeywords]) -> str: ...

    def enqueue(self, task: AnyTask, payload: Any = UNSET, **options: Unpack[JobKeywords]) -> str:
        """Enqueues a job of this type in the step that completes this one: it exists exactly if this job is completed.

        `task` is a task, or the type of a route. The payload is checked against the type of the task, if its module is
        imported here. Without `priority` the job goes into the queue of this one. `delay`, and a `deadline` that is a
        duration, count from the end of this job. Returns the id, which is the same in each attempt. Raises JobError,
        also for the 101st follow-up and above 256 KiB."""
        return self._making().add_job(task, payload, options)

    def enqueue_file(self, path: AnyPath, **options: Unpack[JobKeywords]) -> str:
        """Like enqueue(), for a job about this file. The ledger learns its version, so that no producer enqueues the
        file again."""
        return self._making().add_file(path, options)

    def output(self, path: AnyPath) -> None:
        """Records a file that this job made; `fileq show` and `fileq trace` name it. At most 1,000."""
        self._making().add_output(path)

    @property
    def batch(self) -> ContextBatch | None:
        """The batch that the job names as its `batch_id`; in a callback the batch that has it, with its `facts`. None
        without one."""
        id, facts = self._job.batch_id, self._job.batch_facts
        joined = ContextBatch(id, self._making) if id else None
        return joined if facts is None else ContextBatch(facts.id, self._making, facts, joined)

    def end(self) -> Made | None:
        """For fileq itself: ends the attempt. Returns what it leaves behind besides its result; None if nothing."""
        return self._made.finish() if self._made is not None else None

    def _making(self) -> Making:
        if self._made is None:
            self._made = Making(self._job.id, self._roots, self._queues, self._types)
        return self._made


# The batch of a job, for its handler. Like every follow-up, what it adds exists exactly if the job is completed.


class ContextBatch(Struct):
    """`context.batch`. A job that is added joins the batch in the step that completes this job, also if the batch is
    sealed; if the batch is cancelled meanwhile, the job is enqueued outside it.

    In a callback it is the batch that has the callback: `facts` says how it stood, and nothing can be added to it.
    `parent` is then the batch that the callback is a member of, if there is one."""

    id: str
    _making: Callable[[], Making]
    facts: BatchFacts | None = None
    parent: ContextBatch | None = None

    def __repr__(self) -> str:
        return f"<fileq batch {self.id}>"

    @overload
    def add(
        self, task: TaskDefinition[Given, Any], payload: Given | UnsetType = UNSET, **options: Unpack[JobKeywords]
    ) -> str: ...

    @overload
    def add(self, task: str, payload: Any = UNSET, **options: Unpack[JobKeywords]) -> str: ...

    def add(self, task: AnyTask, payload: Any = UNSET, **options: Unpack[JobKeywords]) -> str:
        """As context.enqueue(), for a job that becomes a member of this batch. Returns its id."""
        return self._joining().add_job(task, payload, options, joins=True)

    def add_file(self, path: AnyPath, **options: Unpack[JobKeywords]) -> str:
        """As context.enqueue_file(), for a job that becomes a member of this batch."""
        return self._joining().add_file(path, options, joins=True)

    def _joining(self) -> Making:
        if self.facts is not None:
            other = "context.enqueue()" if self.parent is None else "context.batch.parent.add() or context.enqueue()"
            raise JobError(f"{self.facts.callback} of batch {self.id} is not a member of it; use {other}")
        return self._making()


# Collects what a handler leaves behind besides its result: follow-ups and the files that it made.
#
# Everything is checked when the handler asks for it, so a mistake is an exception in the handler, and the broker is
# never given a follow-up that it would refuse. Nothing here reaches a broker: the outcome carries it to the worker,
# which puts it on the settlement. A kill -9 leaves nothing of it.

T = TypeVar("T", FollowUpRequest, Output)


class Making(Struct):
    """Of one attempt at the job `parent_id`. Without `roots`, as in a test of a handler, a file may be anywhere.
    Without `queues` every priority is accepted. `types` are all types that exist, for tests; None in a worker, because
    another machine may have a task that this one does not know."""

    parent_id: str
    roots: Sequence[bytes]
    queues: Sequence[str]
    types: Collection[str] | None = None
    requests: list[FollowUpRequest] = []
    outputs: dict[bytes, Output] = {}
    size: int = 0
    is_closed: bool = False

    def add_job(self, task: AnyTask, payload: Any, options: JobKeywords, *, joins: bool = False) -> str:
        """Returns the id of the job. A task may have a priority of its own. `joins`: it becomes a member of the batch
        of the job that it follows."""
        from fileq.handlers.registry import typed_request  # imports this module

        try:
            request = typed_request(task, payload, self._checked(options))
        except ConfigError as error:
            raise JobError(str(error)) from error
        check_type(request.type)
        if self.types is not None and request.type not in self.types:
            raise JobError(no_handler(request.type, self.types))
        return self._add(FollowUpRequest(request.options, request.type, request.payload or b"", joins=joins))

    def add_file(self, path: AnyPath, options: JobKeywords, *, joins: bool = False) -> str:
        where = _absolute(path)
        if self.roots and (refused := check_file(where, self.roots)) is not None:
            raise JobError(f"{os.fsdecode(where)!r} can't be enqueued: {refused.error}")
        status = _file_status(where, "enqueued")
        size, signature = status.st_size, signature_of(status)
        request = FollowUpRequest(self._checked(options), path=where, size=size, signature=signature, joins=joins)
        return self._add(request)

    def add_output(self, path: AnyPath) -> None:
        self._check_open()
        where = _absolute(path)
        if where not in self.outputs and len(self.outputs) >= OUTPUTS_MAX:
            raise JobError(f"a job can have {OUTPUTS_MAX} outputs; {os.fsdecode(where)!r} is one more")
        status = _file_status(where, "an output")
        self.outputs[where] = Output(where, status.st_size, signature_of(status))

    def finish(self) -> Made | None:
        """What was made, each file as it is now; None if that is nothing. Later calls of the handler are refused."""
        self.is_closed = True
        if not self.requests and not self.outputs:
            return None
        return Made(tuple(map(_as_it_is, self.requests)), tuple(map(_as_it_is, self.outputs.values())))

    def _add(self, request: FollowUpRequest) -> str:
        self._check_open()
        if len(self.requests) >= FOLLOW_UPS_MAX:
            raise JobError(f"a job can enqueue {FOLLOW_UPS_MAX} follow-ups; let one of them enqueue the others")
        size = self.size + len(msgspec.msgpack.encode(request))
        if size > FOLLOW_UPS_MAX_BYTES:
            raise JobError(
                f"the follow-ups of this job have {size} bytes; {FOLLOW_UPS_MAX_BYTES} are allowed together: "
                "put the data into files and their paths into the payloads"
            )
        self.size = size
        self.requests.append(request)
        return request.options.id

    def _checked(self, options: JobKeywords) -> JobOptions:
        try:
            fields = read_options(options, JobKeywords)
        except ConfigError as error:
            raise JobError(str(error)) from None
        checked = JobOptions(**fields)
        if checked.priority and self.queues and checked.priority not in self.queues:
            raise JobError(f"priority is {checked.priority!r}; it must be one of {', '.join(self.queues)}")
        check_id(checked.id)
        check_tags(checked.tags)
        return checked if checked.id else replace(checked, id=follow_up_id(self.parent_id, len(self.requests) + 1))

    def _check_open(self) -> None:
        if self.is_closed:
            raise JobError("the attempt has ended; add follow-ups and outputs before the handler returns")


def no_handler(type: str, known: Collection[str]) -> str:
    """Says that jobs of this type have no handler, and what was probably meant."""
    types = f"known types: {', '.join(known) or 'none'}"
    return f"no handler for type {type!r}; {did_you_mean(type, known, types)}"


def _absolute(path: AnyPath) -> bytes:
    where = os.fsencode(path)
    if not where or b"\0" in where:
        raise JobError(f"{path!r} is not a path: it is empty or contains a null byte")
    return os.path.abspath(where)


def _file_status(where: bytes, what: str) -> os.stat_result:
    try:
        status = os.stat(where)
    except OSError as error:
        raise JobError(f"{os.fsdecode(where)!r} can't be {what}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise JobError(f"{os.fsdecode(where)!r} can't be {what}: it is not a regular file")
    return status


def _as_it_is(value: T) -> T:
    """With the size and the signature that its file has now. A file that is gone keeps those it had."""
    if not value.path:
        return value
    try:
        status = os.stat(value.path)
    except OSError:
        return value
    return replace(value, size=status.st_size, signature=signature_of(status))


# `context.log`: logging for handlers, in structlog's style, in any process.
#
# Lines go to structlog where the process has configured it. Elsewhere (in a test, for example) each line is one JSON
# object on stderr. Never raises because a line could not be written.


class Log:
    """A logger with some fields bound: log.info("page.read", page=3)."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """The same logger with more fields on every line."""
        return Log({**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write("error", event, {**fields, "exception": traceback.format_exc().rstrip()})

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        fields = {**self._fields, **fields}
        # Not imported here: a process that has not imported structlog has not configured it either.
        structlog = sys.modules.get("structlog")
        # stderr may be closed, its disk may be full, or the process may have none.
        with contextlib.suppress(OSError, ValueError):
            if structlog is not None and structlog.is_configured():
                getattr(structlog.get_logger(), level)(event, **fields)
            elif level != "debug" and sys.stderr is not None:
                now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
                fields |= {"event": event, "level": level, "timestamp": now}
                # json.dumps writes ASCII only: the encoding of stderr may not be able to write every file name.
                sys.stderr.write(json.dumps(fields, default=repr) + "\n")
                sys.stderr.flush()
