"""A job as its caller holds it: its status, result and cancellation; and a job in a list. Keeps no copy of the job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from fileq.brokers.types import CancelResult, Record
from fileq.client.job_endings import JobEnding
from fileq.client.options import checked_timeout
from fileq.client.transport import Transport
from fileq.core.errors import JobCancelledError, JobError, JobFailedError, ResultExpired
from fileq.core.job import State, decode_or_none
from fileq.core.public_name import public
from fileq.core.units import format_duration
from fileq.handlers.context import JobView, view_of
from fileq.handlers.registry import REGISTRY, TaskDefinition
from fileq.queries.job_filter import StoredJob

R = TypeVar("R")


@public()
class Status(Struct, frozen=True):
    """A job at one moment. `state` is None if it has no record: it never existed, or its record has expired.

    `result` is what the handler returned, as JSON values. `error` is the last one."""

    id: str
    state: State | None
    queue: str = ""
    attempts: int = 0
    error: str = ""
    result: Any = None
    is_cancel_requested: bool = False
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    due: datetime | None = None  # of a job that waits for its time or its retry

    @property
    def is_finished(self) -> bool:
        """Completed, dead, cancelled, or unknown."""
        return self.state is None or not self.state.is_unfinished


@public()
class Handle(Generic[R]):
    """One job. `fate` is "enqueued", or "duplicate" if the id is that of a job which was there before, or "vetoed" if a
    function with @fileq.before_enqueue returned None, and there is no job; None if the handle did not enqueue it."""

    def __init__(
        self,
        id: str,
        transport: Callable[[], Transport],
        task: TaskDefinition[Any, R] | None = None,
        fate: str | None = None,
    ) -> None:
        self.id = id
        self.fate = fate
        self._transport = transport
        self._task = task

    def __repr__(self) -> str:
        return f"<fileq job {self.id}>"

    def status(self) -> Status:
        [record] = self._transport().records([self.id])
        return status_of(self.id, record)

    def wait(self, timeout: float | None = None) -> R:
        """The result, once the job is completed. Raises JobFailed if it is dead, JobCancelled if it was cancelled,
        ResultExpired if its record is gone, TimeoutError after `timeout` seconds. Outages of the broker in between are
        waited out."""
        result = self.wait_unless(lambda: False, timeout)
        assert result is not None
        return result[0]

    def wait_unless(self, is_stopped: Callable[[], bool], timeout: float | None = None) -> tuple[R] | None:
        """wait(), given up within half a second once `is_stopped`: then None."""
        timeout = checked_timeout(timeout)
        try:
            ending = self._transport().ending(self.id, timeout, is_stopped)
        except TimeoutError:
            limit = format_duration(timeout or 0)
            raise TimeoutError(f"job {self.id} has not ended within {limit}; it goes on") from None
        return (self._result(ending),) if ending is not None else None

    def cancel(self) -> CancelResult:
        """Cancels a job that waits ("cancelled"), or requests it of the worker that runs it ("requested"). Does nothing
        if the job has ended ("ended") or has no record ("unknown")."""
        result = self._transport().cancel(self.id)
        return CancelResult.REQUESTED if result is CancelResult.REQUESTED_BEFORE else result

    def retry(self) -> None:
        """Puts a dead job back into its queue, with its failures forgotten. JobError says why if that is impossible."""
        self._transport().retry(self.id)

    def _result(self, ending: JobEnding) -> R:
        record = ending.record
        if ending.state is State.DEAD:
            raise JobFailedError(ending.error, record.run_count if record is not None else ending.failures)
        if ending.state is State.CANCELLED:
            raise JobCancelledError(f"job {self.id} was cancelled")
        if record is None:
            raise ResultExpired(f"there is no record of job {self.id}: it never existed or was removed")
        return self._decoded(record)

    def _decoded(self, record: Record) -> R:
        """The result, of the task's type if this process knows the task."""
        job = decode_or_none(record.raw)
        task = self._task if job is None or self._task is None or self._task.name == job.type else None
        if task is None and job is not None and job.type is not None:
            task = REGISTRY.task(job.type)
        raw = record.result or b"null"
        if task is None:
            return msgspec.json.decode(raw)  # type: ignore[no-any-return]
        try:
            return task.result_decoder.decode(raw)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, ValueError) as error:
            raise JobError(f"the result of job {self.id} is not what task {task.name!r} returns: {error}") from error


def status_of(id: str, record: Record | None) -> Status:
    if record is None:
        return Status(id, None)
    return Status(
        id,
        record.state,
        record.queue,
        record.run_count,
        "" if record.state is State.COMPLETED else record.error,
        _json(record.result),
        record.is_cancel_requested,
        _moment(record.created_ms),
        _moment(record.started_ms),
        _moment(record.ended_ms),
        _moment(record.due_ms),
    )


def _json(result: bytes) -> Any:
    try:
        return msgspec.json.decode(result) if result else None
    except (msgspec.DecodeError, ValueError):
        return None


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


class ListedJob(JobView[Any], frozen=True, dict=True):
    """A job in a list: what its handler sees, and where it stands. `payload` has the type of its task if this process
    knows the task. `error` is that of its last attempt, "" if none failed."""

    error: str
    state: State
    queue: str
    attempts: int
    result: Any


def listed(stored: StoredJob, transport: Transport) -> ListedJob | None:
    """None for bytes that are not a job."""
    job, record = stored.job, stored.record
    if job is None:
        return None
    path = transport.local_path(job.path) if job.filepath else b""
    task = REGISTRY.task(job.type) if job.type is not None else None
    try:
        view = view_of(job, path, None, task.payload_decoder if task is not None else None)
    except (msgspec.DecodeError, ValueError):  # a job of another program
        view = view_of(job.but(payload=msgspec.UNSET), path)
    view = msgspec.structs.replace(view, error=stored.error)
    result = msgspec.json.decode(record.result) if record is not None and record.result else None
    count = record.run_count if record is not None else 0
    values = (*astuple(view), stored.state, stored.home, count, result)
    return ListedJob(*values)
