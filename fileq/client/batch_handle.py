"""A batch as its creator holds it: adds jobs, seals it, waits for it. Keeps no copy of the batch.

What a kill -9 inside a `with` leaves: an open batch with the jobs that were added. It is cancelled after 24 hours in
which nothing is added, or by `fileq batch cancel`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.brokers.types import Record
from fileq.client.batch_ending import wait_for_batch
from fileq.client.batch_status import BatchStatus, status_of_batch
from fileq.client.handle import Handle
from fileq.client.job_filter import JobFilter, StoredJob
from fileq.client.job_options import EnqueueOptions
from fileq.client.listed_job import ListedJob, listed
from fileq.client.task_call import TaskCall
from fileq.client.transport import BatchRetry, Transport
from fileq.core.errors import FileqError
from fileq.core.job import decode_or_none
from fileq.core.public_name import public
from fileq.handlers.registry import TaskDefinition

if TYPE_CHECKING:
    from fileq.client.client import Client

P = TypeVar("P")
R = TypeVar("R")


@public("Batch")
class BatchHandle:
    """One batch. Users know it as fileq.Batch. `priority` is for jobs that are added without one."""

    def __init__(self, client: Client, id: str, priority: str = "") -> None:
        self.id = id
        self.priority = priority
        self._client = client

    def __repr__(self) -> str:
        return f"<fileq batch {self.id}>"

    @overload
    def add(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> Handle[R]: ...

    @overload
    def add(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> Handle[Any]: ...

    def add(
        self, task: TaskDefinition[Any, Any] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        """Enqueues a job as Client.enqueue() does; it is a member. BatchError once the batch takes no jobs any more.

        A job that is not enqueued because of its id or unique key (`fate` is "duplicate") does not become a member."""
        return self.add_many([TaskCall(task, payload, **options)])[0]

    def add_file(
        self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        options["batch"] = self
        return self._client.enqueue_file(path, **options)

    def add_many(self, calls: Iterable[TaskCall[Any, Any] | Path]) -> list[Handle[Any]]:
        """As Client.enqueue_many()."""
        return self._client.enqueue_many(calls, batch=self)

    def seal(self) -> bool:
        """Says that no job is added any more; only the batch's own running jobs still can. An empty batch is finished
        by it. False if it was sealed before."""
        if self._transport().batches.seal(self.id):
            return True
        self.status()  # raises if there is no such batch
        return False

    def status(self) -> BatchStatus:
        """The counts of one moment. BatchError if there is no such batch."""
        [view] = self._transport().batches.by_id([self.id])
        return status_of_batch(self.id, view)

    def wait(self, timeout: float | None = None) -> BatchStatus:
        """Until the batch is finished: sealed, and no member unfinished. Its `is_success` says whether all were
        completed. Raises TimeoutError after `timeout` seconds. Outages of the broker in between are waited out."""
        status = self.wait_unless(lambda: False, timeout)
        assert status is not None
        return status

    def wait_unless(self, is_stopped: Callable[[], bool], timeout: float | None = None) -> BatchStatus | None:
        """wait(), given up within half a second once `is_stopped`: then None."""
        transport = self._transport()
        return wait_for_batch(transport.batches.by_id, transport.subscribe, self.id, timeout, is_stopped)

    def cancel(self) -> bool:
        """Seals the batch and cancels what has not ended: waiting jobs now or when they are claimed, running ones
        within a second. False if it is finished or was cancelled before."""
        if self._transport().batches.cancel(self.id):
            return True
        self.status()
        return False

    def retry(self) -> BatchRetry:
        """Puts the dead members back into their queues; a cancelled batch is not cancelled any more. Members that were
        cancelled stay so."""
        self.status()
        return self._transport().batches.retry(self.id)

    def jobs(self, *, dead: bool = False) -> Iterator[ListedJob]:
        """The members that still have a record; with `dead` the dead ones, which are found without a search."""
        transport = self._transport()
        found = self._dead() if dead else transport.select(JobFilter(batch=self.id))
        return (job for stored in found if (job := listed(stored, transport)) is not None)

    def _dead(self) -> Iterator[StoredJob]:
        transport, cursor = self._transport(), ""
        while True:
            page = transport.batches.dead_page(self.id, cursor)
            yield from map(_stored, page.records)
            cursor = page.next_cursor
            if not cursor:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.seal()
            return
        with suppress(FileqError):  # the error of the block is the one to report
            self.cancel()

    def _transport(self) -> Transport:
        return self._client.transport()


def _stored(record: Record) -> StoredJob:
    return StoredJob(record.raw, record.id, decode_or_none(record.raw), record, record.state, record.queue)
