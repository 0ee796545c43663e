"""What a client needs of a queue: a handful of operations. broker_transport.py does them on a broker,
http_transport.py through a server.

A transport is opened when it is first used and shared by the threads of a process. Its methods raise ConfigError for
wrong arguments, BrokerUnavailable if the same call may succeed later, and BrokerError if the call was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import CancelResult, Record
from fileq.client.job_endings import JobEnding
from fileq.client.options import WantedSchedule
from fileq.core.batch import CallbackKind
from fileq.core.job_options import JobRequest
from fileq.queries.documents import BatchDocument, JobDocument
from fileq.queries.job_filter import JobConditions
from fileq.queries.job_queries import FileTrace

BATCH = 500  # jobs in one round trip


VETOED = "vetoed"  # the fate of a job that a function with @fileq.before_enqueue did not let through


class Accepted(Struct, frozen=True):
    """What became of a request: `id` is the job's, which is an existing one if it is a duplicate. `fate` is a word of
    EnqueueResult, or VETOED. `warning` says why no worker would take it; "" if nothing is wrong or known. `is_hidden`:
    it is a duplicate of a job that this caller may not read, which need not have this `id`. `record` is that of a new
    job as it was enqueued; only a transport on a broker knows it."""

    id: str
    fate: str
    warning: str = ""
    is_hidden: bool = False
    record: Record | None = None


class BatchRequest(Struct, frozen=True):
    """A batch to create. `priority` is for the jobs that are added without one. Only a server sets `made_by`."""

    id: str
    name: str = ""
    parent: str = ""
    allow_failures: bool = False
    priority: str = ""
    callbacks: Mapping[CallbackKind, JobRequest] = {}
    made_by: str = ""


class BatchRetry(Struct, frozen=True):
    """What a retry of a batch did: how many dead members are queued again, and why the others are not, by id."""

    count: int
    left: dict[str, str] = {}


class JobDocuments(Struct, frozen=True):
    """A part of a list of jobs. `next_cursor` is empty at its end."""

    jobs: tuple[JobDocument, ...]
    next_cursor: str | None = None


class Transport(Protocol):
    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        """Checks all requests before the first is sent, then sends BATCH of them a round trip. BatchError if the batch
        of one takes no jobs; the others are enqueued.

        A lost reply is no reason to fail: each job has its id before the first try, so the call is repeated."""

    def job(self, id: str) -> JobDocument | None: ...

    def ending(self, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding:
        """Waits until the job has ended. Raises TimeoutError; GivenUp within half a second once `is_stopped`."""

    def subscribe(self) -> Subscription: ...

    def select(self, given: JobConditions, limit: int | None = None) -> Iterator[JobDocument]:
        """At most `limit` jobs that meet the conditions: waiting ones in order, ended ones newest first."""

    def trace(self, path: bytes) -> FileTrace: ...

    def size(self, queue: str) -> int: ...

    def clear(self, queue: str) -> int: ...

    def cancel(self, id: str) -> CancelResult: ...

    def retry(self, id: str, *, is_probe: bool = False) -> None:
        """Puts a dead job back into its queue. A probe runs next, and no open circuit breaker defers it. Raises
        JobError, saying why, if that is impossible."""

    def warning(self, type: str) -> str:
        """Why no worker would take jobs of this type; "" if nothing is wrong or known."""

    def schedule(self, name: str, options: WantedSchedule) -> None:
        """Defines a schedule or replaces its definition. ConfigError for one that the configuration has."""

    def create_batch(self, request: BatchRequest) -> None:
        """Creates the batch; nothing if it exists, for a repeated call. BrokerError if its parent takes no jobs."""

    def batch(self, id: str) -> BatchDocument | None:
        """The batch at one moment."""

    def seal_batch(self, id: str) -> bool:
        """False if it is not open."""

    def cancel_batch(self, id: str) -> bool:
        """Marks the batch as cancelled, and cancels the members that wait. False if it is finished or cancelled."""

    def retry_batch(self, id: str) -> BatchRetry:
        """Puts the dead members back into their queues, after the mark of a cancelled batch was removed."""

    def dead_page(self, id: str, cursor: str) -> JobDocuments:
        """Members that are dead, in no defined order."""

    def close(self) -> None: ...
