"""What a client needs of a queue: a handful of operations. broker_transport.py does them on a broker.

A transport is opened when it is first used and shared by the threads of a process. Its methods raise ConfigError for
wrong arguments, BrokerUnavailable if the same call may succeed later, and BrokerError if the call was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from fileq.brokers.notifications import Subscription
from fileq.brokers.types import CancelResult, Record
from fileq.client.job_filter import JobFilter, StoredJob
from fileq.client.job_options import JobOptions
from fileq.client.queries import FileTrace
from fileq.client.schedule_options import ScheduleOptions
from fileq.core.job import State

BATCH = 500  # jobs in one round trip


class JobRequest(Struct, frozen=True):
    """A job to enqueue: for a file, or of a type with a payload. `payload` is JSON; None if there is none."""

    options: JobOptions
    type: str = ""
    payload: bytes | None = None
    path: str = ""


VETOED = "vetoed"  # the fate of a job that a function with @fileq.before_enqueue did not let through


class Accepted(Struct, frozen=True):
    """What became of a request: `id` is the job's, which is an existing one if it is a duplicate. `fate` is a word of
    EnqueueResult, or VETOED."""

    id: str
    fate: str


class Transport(Protocol):
    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        """Checks all requests before the first is sent, then sends BATCH of them a round trip.

        A lost reply is no reason to fail: each job has its id before the first try, so the call is repeated."""
        ...

    def records(self, ids: Sequence[str]) -> list[Record | None]: ...

    def states(self, ids: Sequence[str]) -> list[State | None]:
        """The states of the records. Cheap: a wait asks 25 times a second."""
        ...

    def subscribe(self) -> Subscription: ...

    def select(self, wanted: JobFilter) -> Iterator[StoredJob]:
        """The jobs that meet the conditions: waiting ones in order, ended ones newest first."""
        ...

    def local_path(self, path: bytes) -> bytes:
        """Where this machine finds a file that a producer knows under this path."""
        ...

    def trace(self, path: bytes) -> FileTrace: ...

    def size(self, queue: str) -> int: ...

    def clear(self, queue: str) -> int: ...

    def cancel(self, id: str) -> CancelResult: ...

    def retry(self, id: str) -> None:
        """Puts a dead job back into its queue. Raises JobError, saying why, if that is impossible."""
        ...

    def schedule(self, name: str, options: ScheduleOptions) -> None:
        """Defines a schedule or replaces its definition. ConfigError for one that the configuration has."""
        ...

    def close(self) -> None: ...
