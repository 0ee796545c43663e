"""Batches: creates one with its callbacks and the files of a manifest, and reports what became of one.

Everything is checked before the batch is created. What a kill -9 leaves: an open batch with the jobs that were enqueued
until then; it is cancelled after 24 hours.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, Record
from fileq.client.batch_handle import BatchStatus, batch_request, info_of, status_of_batch
from fileq.client.broker_batches import check_client_batch, new_batch
from fileq.client.transport import BatchRequest
from fileq.commands.enqueue import Enqueuing
from fileq.config import Config
from fileq.core.errors import BatchError, BrokerError, ConfigError, FileqError
from fileq.core.job import State, stamp
from fileq.files.manifest import ManifestEntry, read_manifest
from fileq.queries.documents import job_document


class BatchPlan(Struct, frozen=True):
    """A batch to create, or one to add to, whose options are those that it has."""

    request: BatchRequest
    is_new: bool

    @property
    def id(self) -> str:
        return self.request.id


def planned_batch(
    *,
    name: str = "",
    then: str | None = None,
    catch: str | None = None,
    finally_: str | None = None,
    allow_failures: bool = False,
    parent: str = "",
    priority: str = "",
) -> BatchPlan:
    return BatchPlan(batch_request(name, allow_failures, then, catch, finally_, parent, priority), is_new=True)


def existing_batch(broker: FullBroker, id: str) -> BatchPlan | None:
    """The batch with this id, to add to it; None if there is none. BatchError if it takes no jobs any more."""
    try:
        [view] = broker.batches_by_id([id])
    except BrokerError as error:
        raise ConfigError(str(error)) from error
    if view is None:
        return None
    check_client_batch(id)
    _check_open(broker, id)
    return BatchPlan(BatchRequest(id, view.name, priority=info_of(view.info).priority), is_new=False)


def _check_open(broker: FullBroker, id: str) -> None:
    [view] = broker.batches_by_id([id])
    status = status_of_batch(id, view)
    if status.is_cancelled or status.state != "open":
        state = "cancelled" if status.is_cancelled else status.state.value
        raise BatchError(f"batch {id} is {state}; it takes no jobs any more")


def fill(broker: FullBroker, config: Config, plan: BatchPlan, entries: Sequence[Entry], enqueuing: Enqueuing) -> None:
    """Creates the batch, unless it exists, and enqueues its jobs. A new batch that can't be filled is cancelled."""
    if plan.is_new:
        broker.create_batch(new_batch(config, plan.request, datetime.now(UTC)))
    try:
        enqueuing.enqueue(entries)
        _check_taken(broker, plan.id, enqueuing)
    except BaseException:
        if plan.is_new:
            with suppress(FileqError):  # then it is cancelled after 24 hours
                broker.cancel_batch(plan.id)
        raise


def _check_taken(broker: FullBroker, id: str, enqueuing: Enqueuing) -> None:
    """BatchError if the batch was sealed or cancelled before all jobs were added."""
    if refused := sum(job.fate is EnqueueResult.REFUSED for job in enqueuing.jobs):
        _check_open(broker, id)
        raise BatchError(f"batch {id} did not take {refused} of {len(enqueuing.jobs)} jobs; they are not enqueued")


def manifest_paths(file: str) -> list[str]:
    """The files of a manifest, each compared with the size and the checksum that it has there. ConfigError names every
    file that is missing or different. Relative paths are relative to the directory of the manifest."""
    try:
        with open(file, "rb") as stream:
            raw = stream.read()
    except OSError as error:
        raise ConfigError(f"--manifest is {file!r}; it can't be read: {error.strerror}") from error
    entries = read_manifest(raw, file)
    where = os.path.dirname(os.path.abspath(file))
    paths = [os.path.join(where, entry.path) for entry in entries]
    problems = [text for entry, path in zip(entries, paths, strict=True) if (text := _difference(entry, path))]
    if problems:
        raise ConfigError(problems)
    return paths


def _difference(entry: ManifestEntry, path: str) -> str:
    try:
        status = os.stat(path)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return f"{entry.path!r} of the manifest is not a regular file"
        if entry.size is not None and size != entry.size:
            return f"{entry.path!r} has {size} bytes; the manifest says {entry.size}"
        if entry.sha256:
            with open(path, "rb", opener=_without_waiting) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != entry.sha256:
                return f"{entry.path!r} has the sha256 {digest}; the manifest says {entry.sha256}"
    except OSError as error:
        return f"{entry.path!r} of the manifest can't be read: {error.strerror}"
    return ""


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file that may be a pipe by now."""
    return os.open(path, flags | os.O_NONBLOCK)


# What `fileq batch` prints of a batch: its counts, its callbacks with their jobs, its first failures. Only reads.


FAILURES_SHOWN = 10
LISTED = 50


class CallbackReport(Struct, frozen=True):
    """`state` is that of its job; null if it was not enqueued, or its record has expired."""

    kind: str
    job_id: str
    is_fired: bool
    state: str | None
    type: str | None
    error: str


class FailureReport(Struct, frozen=True):
    """A member that is dead, since `died`. Members with an equal `fingerprint` died of the same cause."""

    id: str
    filepath: str
    type: str | None
    error: str
    fingerprint: str = ""
    died: str | None = None


class BatchReport(Struct, frozen=True):
    """One batch, as `--json` prints it."""

    id: str
    name: str
    parent: str
    state: str
    is_cancelled: bool
    is_success: bool
    allow_failures: bool
    priority: str
    total: int
    waiting: int
    running: int
    completed: int
    dead: int
    cancelled: int
    deleted: int
    created: str | None
    sealed: str | None
    finished: str | None
    first_dead: str
    first_error: str
    callbacks: tuple[CallbackReport, ...] = ()
    failures: tuple[FailureReport, ...] = ()


def list_batches(broker: FullBroker, limit: int, *, unfinished: bool) -> list[BatchReport]:
    """The newest first."""
    found: list[BatchReport] = []
    cursor = ""
    while len(found) < limit:
        page = broker.batch_page(cursor, min(100, limit - len(found)), unfinished=unfinished)
        found += (report_of(status_of_batch(view.id, view)) for view in page.batches)
        cursor = page.next_cursor
        if not cursor:
            break
    return found[:limit]


def show_batch(broker: FullBroker, id: str) -> BatchReport:
    """With its callbacks and first failures. BatchError for an unknown id."""
    [view] = broker.batches_by_id([id])
    status = status_of_batch(id, view)
    dead = broker.dead_members(id).ids if status.dead else ()
    ids = [*(one.job_id for one in status.callbacks), *dead]
    records = dict(zip(ids, broker.records(ids) if ids else (), strict=True))
    return report_of(status, _callbacks(status, records), _failures([records[id] for id in dead]))


def report_of(
    status: BatchStatus, callbacks: tuple[CallbackReport, ...] = (), failures: tuple[FailureReport, ...] = ()
) -> BatchReport:
    times = (round(at.timestamp() * 1000) if at else 0 for at in (status.created, status.sealed, status.finished))
    created, sealed, finished = map(stamp, times)
    return BatchReport(
        id=status.id,
        name=status.name,
        parent=status.parent,
        state=status.state.value,
        is_cancelled=status.is_cancelled,
        is_success=status.is_success,
        allow_failures=status.allow_failures,
        priority=status.priority,
        total=status.total,
        waiting=status.waiting,
        running=status.running,
        completed=status.completed,
        dead=status.dead,
        cancelled=status.cancelled,
        deleted=status.deleted,
        created=created,
        sealed=sealed,
        finished=finished,
        first_dead=status.first_dead,
        first_error=status.first_error,
        callbacks=callbacks,
        failures=failures,
    )


def _callbacks(status: BatchStatus, records: Mapping[str, Record | None]) -> tuple[CallbackReport, ...]:
    found = []
    for one in status.callbacks:
        record = records[one.job_id]
        job = job_document(record) if record is not None else None
        state, type, error = (job.status, job.type, job.error or "") if job is not None else (None, None, "")
        found.append(CallbackReport(one.kind.value, one.job_id, one.is_fired, state, type, error))
    return tuple(found)


def _failures(records: Iterable[Record | None]) -> tuple[FailureReport, ...]:
    """Of the first page of dead members: it is enough to see what goes wrong."""
    dead = sorted((one for one in records if one and one.state is State.DEAD), key=lambda one: one.ended_ms)
    first = [job_document(one) for one in islice(dead, FAILURES_SHOWN)]
    return tuple(
        FailureReport(one.id, one.path or "", one.type, one.error or "", one.fingerprint or "", one.completed_at)
        for one in first
    )
