"""What a handler is given: the job as a read-only view, and the context of one attempt."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Unpack

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import force_setattr

from fileq.core.batch import BatchFacts, facts_of
from fileq.core.job import Job
from fileq.core.outcome import Made
from fileq.core.public_name import public
from fileq.core.trace import traceparent
from fileq.core.units import LONGEST_S
from fileq.handlers.context_batch import ContextBatch
from fileq.handlers.job_file import JobFile
from fileq.handlers.log import Log
from fileq.handlers.making import FollowUpOptions, Making, NamedTask, Path

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # comes with every type checker; at run time it may be missing

    P = TypeVar("P", default=Any)
else:
    from typing import TypeVar

    P = TypeVar("P")


class CancelFlag(Protocol):
    """The part of threading.Event that a handler needs."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class LazyEvent:
    """A threading.Event for one attempt that is created by the first wait().

    One is made for every task, and few handlers wait on it; an Event with its locks would cost more than a tiny
    task."""

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
        if self._file is None:
            reason = "a copy of a job can't open its file" if self.path else "the job has no file"
            raise ValueError(reason)
        return self._file.open(mode, buffering, encoding, errors, newline)


_shared_fields = attrgetter(*JobView.__struct_fields__[2:-2])  # all but path, payload, tags and batch_facts


def view_of(
    job: Job, path: bytes, file: JobFile | None = None, decoder: msgspec.json.Decoder[Any] | None = None
) -> JobView[Any]:
    """The job for its handler; raises msgspec.DecodeError or ValueError if its payload can't be decoded.

    `file` is what job.open() opens. `decoder` is for payloads of a type; a job without a payload has None."""
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
        self._made: Making | None = None
        self._state: dict[str, Any] | None = None

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

    @property
    def state(self) -> dict[str, Any]:
        """What middleware leaves for the handler of this attempt. Empty at the start of each attempt."""
        if self._state is None:
            self._state = {}
        return self._state

    def enqueue(self, task: NamedTask | str, payload: Any = None, **options: Unpack[FollowUpOptions]) -> str:
        """Enqueues a job of this type in the step that completes this one: it exists exactly if this job is completed.

        `task` is a task, or the type of a route. Without `priority` the job goes into the queue of this one. Returns
        the id, which is the same in each attempt. Raises JobError, also for the 101st follow-up and above 256 KiB."""
        return self._making().add_job(task, payload, options)

    def enqueue_file(self, path: Path, **options: Unpack[FollowUpOptions]) -> str:
        """Like enqueue(), for a job about this file. The ledger learns its version, so that no producer enqueues the
        file again."""
        return self._making().add_file(path, options)

    def output(self, path: Path) -> None:
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
            self._made = Making(self._job.id, self._roots, self._queues)
        return self._made
