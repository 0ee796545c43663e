"""A job as the API shows it. Combines the record with the job's own JSON; queries/job_summary.py reads both."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from fileq.brokers.types import Record
from fileq.core.batch import BatchFacts
from fileq.core.job import decode_or_none, encode
from fileq.queries.job_summary import AttemptSummary, JobHistory, OutputSummary, history

OUTLINE_BYTES = 4 << 10


class JobDocument(Struct, frozen=True):
    """One job. Times are RFC 3339 in UTC; null for what has not happened. `status` is pending, scheduled, running,
    retrying, completed, dead or cancelled. `path` is null if the server shows no names of files. `fingerprint` is that
    of a dead job's cause. `deferred` is why a job is held back, `deferred_count` how often it was;
    `first_deferred_at` and `last_deferred_at` are null in lists, and if they were not recorded. `left_out` are fields
    that a list leaves out, because they are longer than 4 KiB; the job itself has them. `batch_facts` is how the batch
    of a callback stood when it enqueued it."""

    id: str
    type: str | None
    status: str
    priority: str
    retry_count: int
    result: Any
    created_at: str | None
    started_at: str | None
    completed_at: str | None
    worker_id: str | None
    queue: str
    path: str | None
    payload: Any
    error: str | None
    scheduled_at: str | None
    deadline: str | None
    max_retries: int | None
    timeout_s: float | None
    unique_key: str | None
    batch_id: str | None
    batch_facts: BatchFacts | None
    parent_id: str | None
    tags: dict[str, str]
    is_finished: bool
    is_cancel_requested: bool
    deferred: str | None
    deferred_count: int
    first_deferred_at: str | None
    last_deferred_at: str | None
    waits_for: tuple[str, ...]
    attempt_count: int
    attempts: tuple[AttemptSummary, ...]
    follow_ups: tuple[str, ...]
    outputs: tuple[OutputSummary, ...]
    filesize: int
    trace_id: str
    span_id: str
    fingerprint: str | None
    left_out: tuple[str, ...] = ()


def job_document(record: Record, waits_for: tuple[str, ...] = ()) -> JobDocument:
    """`waits_for` is what keeps a waiting job from running."""
    known = history(record, waits_for)
    job, summary = decode_or_none(record.raw), known.job
    return JobDocument(
        id=summary.id,
        type=summary.type,
        status=summary.state,
        priority=summary.priority or summary.queue,
        retry_count=summary.retries,
        result=known.result,
        created_at=summary.created,
        started_at=summary.started,
        completed_at=summary.ended,
        worker_id=summary.worker or None,
        queue=summary.queue,
        path=summary.filepath or None,
        payload=known.payload,
        error=_error(known),
        scheduled_at=summary.due,
        deadline=job.deadline if job is not None else None,
        max_retries=job.max_retries if job is not None else None,
        timeout_s=job.timeout if job is not None else None,
        unique_key=job.unique_key if job is not None else None,
        batch_id=job.batch_id if job is not None else None,
        batch_facts=known.batch_facts,
        parent_id=known.parent_id,
        tags=job.tag_values if job is not None else {},
        is_finished=not record.state.is_unfinished,
        is_cancel_requested=known.is_cancel_requested,
        deferred=summary.deferred or None,
        deferred_count=summary.deferred_count,
        first_deferred_at=summary.first_deferred,
        last_deferred_at=summary.last_deferred,
        waits_for=known.waits_for,
        attempt_count=summary.attempts,
        attempts=known.attempts,
        follow_ups=known.follow_ups,
        outputs=known.outputs,
        filesize=summary.filesize,
        trace_id=job.trace_id if job is not None else "",
        span_id=job.span_id if job is not None else "",
        fingerprint=summary.fingerprint or None,
    )


def job_outline(record: Record) -> JobDocument:
    """The job for a list, without what is long. Decodes none of it."""
    job, raw, left_out = decode_or_none(record.raw), record.raw, []
    if job is not None and len(raw) > OUTLINE_BYTES:
        if job.payload is not UNSET and len(bytes(job.payload)) > OUTLINE_BYTES:
            left_out.append("payload")
            job = replace(job, payload=UNSET)
        raw = encode(replace(job, unknown=UNSET))
    short: dict[str, Any] = {}
    if len(record.result) > OUTLINE_BYTES:
        short["result"] = b""
    if sum(len(one.error) + len(one.traceback) + len(one.output) for one in record.attempts) > OUTLINE_BYTES:
        short["attempts"] = ()
    if sum(map(len, record.follow_ups)) > OUTLINE_BYTES:
        short["follow_ups"] = ()
    if sum(len(one.path) for one in record.outputs) > OUTLINE_BYTES:
        short["outputs"] = ()
    return replace(job_document(replace(record, raw=raw, **short)), left_out=(*left_out, *short))


def _error(known: JobHistory) -> str | None:
    """A completed job has none, although an earlier attempt may have failed."""
    return (known.job.error or None) if known.job.state != "completed" else None
