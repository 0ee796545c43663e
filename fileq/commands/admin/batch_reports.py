"""What `fileq batch` prints of a batch: its counts, its callbacks with their jobs, its first failures. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.client.batch_handle import BatchStatus, status_of_batch
from fileq.core.job import State, stamp
from fileq.queries.job_summary import summarize

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
        job = summarize(record.raw, record, state=record.state) if record is not None else None
        state, type, error = (job.state, job.type, job.error) if job is not None else (None, None, "")
        found.append(CallbackReport(one.kind.value, one.job_id, one.is_fired, state, type, error))
    return tuple(found)


def _failures(records: Iterable[Record | None]) -> tuple[FailureReport, ...]:
    """Of the first page of dead members: it is enough to see what goes wrong."""
    dead = sorted((one for one in records if one and one.state is State.DEAD), key=lambda one: one.ended_ms)
    first = [(summarize(one.raw, one, state=one.state), one.fingerprint) for one in islice(dead, FAILURES_SHOWN)]
    return tuple(FailureReport(job.id, job.filepath, job.type, job.error, mark, job.ended) for job, mark in first)
