"""What a handler is given: the job as it needs it, and the context of this one attempt."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Protocol

from msgspec import Struct

from fileq.core.job import Job
from fileq.core.trace import traceparent
from fileq.handlers.log import Log


class CancelFlag(Protocol):
    """The part of threading.Event that a handler needs."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Flag:
    """An event for one attempt that costs next to nothing until somebody waits for it, which few handlers do."""

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
        with _making:
            event = self._event = self._event or threading.Event()
        if self._is_set:  # perhaps before there was an event to be told
            event.set()
        return event.wait(timeout)


_making = threading.Lock()


class JobView(Struct, frozen=True):
    """A job for its handler. `path` is the file on this machine, fit for open() whatever its name, "" without a file;
    `payload` is decoded. The other fields are those of the job's JSON."""

    path: str
    payload: Any
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


_LONGEST_S = 36_500 * 86_400.0  # as in the configuration: beyond any use, within what datetime bears
_shared = attrgetter(*JobView.__struct_fields__[2:])  # all but path and payload


def view_of(job: Job, path: bytes) -> JobView:
    """The job for its handler; raises msgspec.DecodeError or ValueError if its payload can't be decoded."""
    return JobView(os.fsdecode(path), job.payload_value, *_shared(job))


class Context:
    """One attempt. `cancelled` is set when it should stop; `attempt` counts from 1."""

    def __init__(
        self,
        job: JobView,
        *,
        cancelled: CancelFlag,
        attempt: int,
        timeout_s: float,
        span: tuple[str, str] | None = None,
    ) -> None:
        # Another program may have put any number into a job.
        self.timeout_s = min(max(0.0, timeout_s), _LONGEST_S)
        self.cancelled = cancelled
        self.attempt = attempt
        self._ends_at_s = time.time() + self.timeout_s
        self._ends_s = time.monotonic() + self.timeout_s
        self._job = job
        self._span = span or (job.trace_id, job.span_id)

    @property
    def deadline(self) -> datetime:
        """When this attempt will be ended, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self._ends_at_s, UTC)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never negative; no step of the clock changes it."""
        return max(0.0, self._ends_s - time.monotonic())

    @property
    def log(self) -> Log:
        """A logger with this job's ids: context.log.info("page.read", page=3)."""
        fields: dict[str, Any] = {"job_id": self._job.id, "attempt": self.attempt}
        trace_id, span_id = self._span
        if trace_id:
            fields |= {"trace_id": trace_id, "span_id": span_id}
        return Log(fields)

    @property
    def traceparent(self) -> str:
        """The trace this attempt belongs to, as W3C's header has it, for calls to others; "" when there is none."""
        return traceparent(*self._span)
