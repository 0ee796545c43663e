"""Batches as a program has them: BatchHandle adds jobs, seals the batch and waits for it;
batch_request() checks a new one. No copy of the batch is kept.

What a kill -9 inside a `with` leaves: an open batch with the jobs that were added. It is cancelled after 24 hours in
which nothing is added, or by `fileq batch cancel`. A caller that is killed while it waits leaves the batch as it is.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fileq.brokers.protocol import Subscription
from fileq.client.event_stream import RETRY_S, SLICE_S, GivenUp, LastingSubscription, PublishedBatchEvent, decode_event
from fileq.client.handle import Handle, with_payload_type
from fileq.client.options import checked_timeout
from fileq.client.tasks import TaskCall
from fileq.client.transport import BatchRequest, BatchRetry, Transport
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.errors import BrokerUnavailable, ConfigError, FileqError
from fileq.core.job_options import EnqueueOptions, JobRequest, NamedBatch, batch_id_of, options_of
from fileq.core.paging import pages
from fileq.core.public_name import public
from fileq.core.text import check_names
from fileq.core.units import format_duration
from fileq.files.paths import AnyPath
from fileq.handlers.registry import TaskDefinition, typed_request
from fileq.queries.documents import BatchDocument, JobDocument, unknown_batch
from fileq.queries.job_filter import JobConditions

if TYPE_CHECKING:
    from fileq.client.client import Client

P = TypeVar("P")
R = TypeVar("R")
CallbackTask: TypeAlias = TaskDefinition[Any, Any] | TaskCall[Any, Any] | str
NAME_MAX = 80  # characters; the id has more, and the ids of callbacks more again
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX}}}")
_NOT_FOR_CALLBACKS = ("id", "delay", "at", "batch", "unique_key")


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
        """Enqueues a job as Client.enqueue() does; it is a member. BatchError once the batch no longer accepts jobs.

        A job that is not enqueued because of its id or unique key (`fate` is "duplicate") does not become a member."""
        return self.add_many([TaskCall(task, payload, **options)])[0]

    def add_file(self, path: AnyPath, **options: Unpack[EnqueueOptions]) -> Handle[Any]:
        options["batch"] = self
        return self._client.enqueue_file(path, **options)

    def add_many(self, calls: Iterable[TaskCall[Any, Any] | Path]) -> list[Handle[Any]]:
        """As Client.enqueue_many()."""
        return self._client.enqueue_many(calls, batch=self)

    def seal(self) -> bool:
        """Says that no job is added any more; only the batch's own running jobs still can. An empty batch is finished
        by it. False if it was sealed before."""
        if self._transport().seal_batch(self.id):
            return True
        self.status()  # raises if there is no such batch
        return False

    def status(self) -> BatchDocument:
        """The counts of one moment. BatchError if there is no such batch."""
        found = self._transport().batch(self.id)
        if found is None:
            raise unknown_batch(self.id)
        return found

    def wait(self, timeout: float | None = None) -> BatchDocument:
        """Until the batch is finished: sealed, and no member unfinished. Its `is_success` says whether all were
        completed. Raises TimeoutError after `timeout` seconds. Outages of the broker in between are waited out."""
        return self.wait_unless(lambda: False, timeout)

    def wait_unless(self, is_stopped: Callable[[], bool], timeout: float | None = None) -> BatchDocument:
        """wait(), which raises GivenUp within half a second once `is_stopped`."""
        timeout = checked_timeout(timeout)
        transport = self._transport()
        return wait_for_batch(self.status, transport.subscribe, self.id, timeout, is_stopped)

    def cancel(self) -> bool:
        """Seals the batch and cancels what has not ended: waiting jobs now or when they are claimed, running ones
        within a second. False if it is finished or was cancelled before."""
        if self._transport().cancel_batch(self.id):
            return True
        self.status()
        return False

    def retry(self) -> BatchRetry:
        """Puts the dead members back into their queues; a cancelled batch is not cancelled any more. Members that were
        cancelled stay so."""
        self.status()
        return self._transport().retry_batch(self.id)

    def jobs(self, *, dead: bool = False) -> Iterator[JobDocument]:
        """The members that still have a record; with `dead` the dead ones, which are found without a search."""
        transport = self._transport()
        found = self._dead() if dead else transport.select(JobConditions(batch=self.id))
        return (with_payload_type(job) for job in found if job.is_job)

    def _dead(self) -> Iterator[JobDocument]:
        transport = self._transport()
        for page in pages(lambda cursor: transport.dead_page(self.id, cursor)):
            yield from page.jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.seal()
            return
        with suppress(FileqError):  # the error of the block is the one to report
            self.cancel()

    def _transport(self) -> Transport:
        return self._client.transport()


# wait_for_batch() subscribes before it reads, so that the end is not missed. An event can still get lost, so the
# batch is read again every RECHECK_S.

RECHECK_S = 2.0


def wait_for_batch(
    read: Callable[[], BatchDocument],
    subscribe: Callable[[], Subscription],
    id: str,
    timeout_s: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    report: Callable[[str], None] = lambda text: None,
    on_status: Callable[[BatchDocument], None] = lambda status: None,
    recheck_s: float = RECHECK_S,
) -> BatchDocument:
    """The finished batch. Raises TimeoutError, GivenUp once `is_stopped`, and what `read` raises.

    `on_status` gets the batch each time it is read, `report` the begin and the end of each outage."""
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    status = None
    with closing(LastingSubscription(subscribe, report, is_patient=True)) as events:
        while not is_stopped():
            try:
                status = read()
                on_status(status)
                if status.is_finished:
                    return status
            except BrokerUnavailable as error:
                events.lose(error)
            if (now_s := time.monotonic()) >= until_s:
                limit = format_duration(timeout_s or 0)
                raise TimeoutError(f"batch {id} is not finished within {limit}; {_standing(status)}")
            next_s = min(until_s, now_s + (RETRY_S if events.is_lost else recheck_s))
            while not is_stopped() and (left_s := next_s - time.monotonic()) > 0:
                raw = events.get(min(SLICE_S, left_s))
                event = decode_event(raw) if raw is not None else None
                if isinstance(event, PublishedBatchEvent) and event.batch_id == id:
                    break
    raise GivenUp


def _standing(status: BatchDocument | None) -> str:
    """What a wait that was too short says of the batch, by its last reading."""
    if status is None:
        return "it may go on"
    if status.status == BatchState.OPEN:
        return "it is open: it ends only after seal(), which the end of its `with` calls"
    return f"{status.ended} of {status.total} jobs have ended"


class BatchKeywords(TypedDict, total=False):
    """What Client.batch() takes as keywords. `then` is enqueued once all jobs are completed, `catch` when the first
    dies, `finally_` when none is unfinished; each is a task, its name, or task.call(…). The first death cancels the
    rest, unless `allow_failures`. A batch with a `parent` is one member of it. `priority` is for jobs without one."""

    allow_failures: bool
    then: CallbackTask | None
    catch: CallbackTask | None
    finally_: CallbackTask | None
    parent: NamedBatch | str | None
    priority: str


def batch_request(name: str = "", *, id: str = "", **options: Unpack[BatchKeywords]) -> BatchRequest:
    """ConfigError names everything that is wrong. Without an `id` the batch gets a new one."""
    check_names(options, BatchKeywords)
    problems: list[str] = []
    if name and not _NAME.fullmatch(name):
        problems.append(f"the name of the batch is {name!r:.120}; it must match {_NAME.pattern}")
    callbacks: dict[CallbackKind, JobRequest] = {}
    priority = options.get("priority", "")
    given = zip(CallbackKind, (options.get("then"), options.get("catch"), options.get("finally_")), strict=True)
    for kind, task in given:
        try:
            if task is not None:
                callbacks[kind] = _callback(task, priority)
        except (ConfigError, TypeError) as error:
            problems += (f"{kind}: {text}" for text in getattr(error, "problems", (str(error),)))
    if problems:
        raise ConfigError(problems)
    parent = batch_id_of(options.get("parent"), "parent")
    may_fail = options.get("allow_failures", False)
    new_id = f"{name or 'batch'}-{secrets.token_hex(6)}"  # another at each call: a name can be used again
    return BatchRequest(id or new_id, name, parent, may_fail, priority, callbacks)


def _callback(task: CallbackTask, priority: str) -> JobRequest:
    """The job of a callback. Its payload is what the caller gave; the facts of the batch come beside it."""
    call = task if isinstance(task, TaskCall) else TaskCall(task)
    if wrong := [name for name in _NOT_FOR_CALLBACKS if call.options.get(name)]:
        raise ConfigError(f"{wrong[0]} can't be given: a callback has an id of its own and is enqueued when it is due")
    request = typed_request(call.task, call.payload, options_of(call.options))
    return replace(request, options=replace(request.options, priority=request.options.priority or priority))
