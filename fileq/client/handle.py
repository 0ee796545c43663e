"""A job as its caller holds it: its status, result and cancellation. Keeps no copy of the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from fileq.brokers.types import CancelResult
from fileq.client.job_endings import JobEnding
from fileq.client.options import checked_timeout
from fileq.client.transport import VETOED, Transport
from fileq.core.errors import ConfigError, FileqError, JobCancelledError, JobError, JobFailedError, ResultExpired
from fileq.core.job import State
from fileq.core.own_jobs import CALLBACK_IDS
from fileq.core.public_name import public
from fileq.core.units import format_duration
from fileq.handlers.registry import REGISTRY, TaskDefinition
from fileq.queries.documents import JobDocument, job_without_record

R = TypeVar("R")


@public()
class Handle(Generic[R]):
    """One job. `fate` is "enqueued", or "duplicate" if the id is that of a job which was there before, or "vetoed" if a
    function with @fileq.before_enqueue returned None, and there is no job; None if the handle did not enqueue it. Over
    HTTP a duplicate may be a job that the key may not read: then every method raises BrokerError.
    `warning` says that no running worker takes the job, "" if one does or if that is unknown."""

    def __init__(
        self,
        id: str,
        transport: Callable[[], Transport],
        task: TaskDefinition[Any, R] | None = None,
        fate: str | None = None,
        warning: str = "",
    ) -> None:
        self.id = id
        self.fate = str(fate) if fate is not None else None  # not a word of the broker's enumeration
        self.warning = warning
        self._transport = transport
        self._task = task

    def __repr__(self) -> str:
        return f"<fileq job {self.id}>"

    def status(self) -> JobDocument:
        """The job at this moment. Its `status` is "unknown" if it never existed, or its record has expired. Its payload
        has the type of its task, if this process knows the task."""
        job = self._transport().job(self.id)
        return with_payload_type(job) if job is not None else job_without_record(self.id)

    def wait(self, timeout: float | None = None) -> R:
        """The result, once the job is completed. Raises JobFailed if it is dead, JobCancelled if it was cancelled,
        ResultExpired if its record is gone, TimeoutError after `timeout` seconds. Outages of the broker in between are
        waited out."""
        return self.wait_unless(lambda: False, timeout)

    def wait_unless(self, is_stopped: Callable[[], bool], timeout: float | None = None) -> R:
        """wait(), which raises GivenUp within half a second once `is_stopped`."""
        timeout = checked_timeout(timeout)
        try:
            ending = self._transport().ending(self.id, timeout, is_stopped)
        except TimeoutError:
            limit = format_duration(timeout or 0)
            raise TimeoutError(f"job {self.id} has not ended within {limit}; {self._standing()}") from None
        return self._result(ending)

    def _standing(self) -> str:
        """What a wait that was too short says of the job; nothing certain if the broker does not answer."""
        try:
            job = self.status()
        except FileqError:
            return "it may go on"
        if job.status == State.RUNNING:
            return "it goes on"
        why = job.waits_for or [one for one in (job.deferred, job.error) if one]
        if job.status == State.SCHEDULED and not why:
            why = [f"due at {job.scheduled_at}"]
        return f"it is {job.status}{': ' if why else ''}{'; '.join(why)}"

    def cancel(self) -> CancelResult:
        """Cancels a job that waits ("cancelled"), or requests it of the worker that runs it ("requested"). Does nothing
        if the job has ended ("ended") or has no record ("unknown")."""
        result = self._transport().cancel(self.id)
        return CancelResult.REQUESTED if result is CancelResult.REQUESTED_BEFORE else result

    def retry(self) -> None:
        """Puts a dead job back into its queue, with its failures forgotten. JobError says why if that is impossible."""
        self._transport().retry(self.id)

    def _result(self, ending: JobEnding) -> R:
        job = ending.job
        if job.status == State.DEAD:
            raise JobFailedError(job.error or "", job.run_count)
        if job.status == State.CANCELLED:
            raise JobCancelledError(f"job {self.id} was cancelled")
        if ending.result is None and self.fate == VETOED:
            raise ResultExpired(f"job {self.id} was not enqueued: a function with @fileq.before_enqueue refused it")
        if ending.result is None:
            why = f"it never existed or was removed{_later(self.id)}"
            raise ResultExpired(f"there is no record of job {self.id}: {why}")
        return self._decoded(job.type, ending.result or b"null")

    def _decoded(self, type: str | None, raw: bytes) -> R:
        """The result, of the task's type if this process knows the task."""
        task = self._task if self._task is None or self._task.name == type else None
        if task is None and type is not None:
            task = REGISTRY.task(type)
        if task is None:
            return msgspec.json.decode(raw)  # type: ignore[no-any-return]
        try:
            return task.result_decoder.decode(raw)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, ValueError) as error:
            raise JobError(f"the result of job {self.id} is not what task {task.name!r} returns: {error}") from error


def with_payload_type(job: JobDocument) -> JobDocument:
    """Its payload has the type of its task, if this process knows the task and the payload fits."""
    task = REGISTRY.task(job.type) if job.type is not None else None
    if task is None:
        return job
    with suppress(msgspec.ValidationError, ConfigError):
        return replace(job, payload=msgspec.convert(job.payload, task.payload_type, str_keys=True))
    return job


def _later(id: str) -> str:
    """What the missing record of a callback may mean too."""
    if not id.endswith(CALLBACK_IDS):
        return ""
    return f", or batch {id.rpartition('.')[0]} has not enqueued it yet; wait for the batch first"
