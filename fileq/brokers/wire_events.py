"""Builds the event of each transition as JSON: `job:*` of a job, `batch:*` of a batch. Every broker publishes exactly
these bytes.

An event is built before the time of its transition is known. It ends with `"at":0}`, and the broker that publishes it
puts its own time there: `stamped()`, or on Redis the script.

The names come from the event classes in fileq/core/events.py, attribute `published_as`.
"""

from __future__ import annotations

import msgspec

from fileq.brokers.batches import BatchWireEvent
from fileq.brokers.types import WireEvent
from fileq.core.batch import Batch
from fileq.core.claim import Buried, Claim
from fileq.core.events import JobCancelled, JobClaimed, JobCompleted, JobDead, JobProduced, event_type
from fileq.core.job import Job, decode_or_none
from fileq.core.settlement import Settlement, Verb

_encoder = msgspec.json.Encoder()
_COMPLETED = JobCompleted.published_as
BATCH_FINISHED = "batch:finished"


def stamped(event: bytes, now_ms: int) -> bytes:
    """The event with the time of its transition."""
    return b"%b%d}" % (event[:-2], now_ms)


def created(job: Job) -> bytes:
    return _event(JobProduced.published_as, job, job.id)


def started(claim: Claim) -> bytes:
    return _event(JobClaimed.published_as, claim.job, claim.id, priority=claim.queue, slot=claim.slot)


def settled(s: Settlement) -> bytes:
    """b"" for a release by a live worker, which is no event. The error of a deferral is its reason."""
    claim, job = s.claim, s.claim.job
    if job is not None and s.verb is Verb.COMPLETE and not s.died:
        # A shortcut for the most frequent event: it skips the general case below.
        return _encoder.encode(
            WireEvent(
                _COMPLETED,
                job.id,
                job.type,
                claim.queue,
                claim.slot,
                s.duration_ms or 0,
                s.error,
                job.retries,
                job.filepath,
            )
        )
    name = event_type(s).published_as
    if not name:
        return b""
    retry_count = job.retries if job else 0
    if s.is_failure:
        retry_count += job is not None
    return _event(
        name,
        job,
        claim.id,
        priority=claim.queue,
        slot=claim.slot,
        duration_ms=s.duration_ms or 0,
        error=s.error or s.reason,
        retry_count=retry_count,
    )


def cancelled(id: str, queue: str, raw: bytes) -> bytes:
    """The event of a waiting job that was cancelled by its id; `raw` are the bytes in its record."""
    job = decode_or_none(raw)
    filepath = job.filepath if job is not None else ""
    return _event(JobCancelled.published_as, None, id, priority=queue, error="cancelled", filepath=filepath)


def buried(found: Buried) -> bytes:
    """The event of bytes that a claim buried."""
    return _event(JobDead.published_as, None, found.id, priority=found.queue, slot=found.slot, error=found.error)


def batch_finished(batch: Batch) -> bytes:
    counts = (batch.total, batch.completed, batch.dead, batch.cancelled, batch.deleted)
    return _encoder.encode(BatchWireEvent(BATCH_FINISHED, batch.id, *counts))


def _event(
    name: str,
    job: Job | None,
    id: str,
    *,
    priority: str = "",
    slot: str = "",
    duration_ms: int = 0,
    error: str = "",
    retry_count: int | None = None,
    filepath: str = "",
) -> bytes:
    return _encoder.encode(
        WireEvent(
            event=name,
            job_id=id,
            type=job.type if job else None,
            priority=priority or (job.priority if job else ""),
            worker_id=slot,
            duration_ms=duration_ms,
            error=error,
            retry_count=retry_count if retry_count is not None else (job.retries if job else 0),
            filepath=filepath or (job.filepath if job else ""),
        )
    )
