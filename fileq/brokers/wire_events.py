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
from fileq.core.events import JobCancelled, JobClaimed, JobDead, JobProduced, event_type
from fileq.core.job import Buried, Claim, Job, decode_or_none
from fileq.core.settlement import Settlement

_encoder = msgspec.json.Encoder()
BATCH_FINISHED = "batch:finished"


def stamped(event: bytes, now_ms: int) -> bytes:
    """The event with the time of its transition."""
    return b"%b%d}" % (event[:-2], now_ms)


def created(job: Job) -> bytes:
    return _event(JobProduced.published_as, job, job.id)


def started(claim: Claim) -> bytes:
    return _event(JobClaimed.published_as, claim.job, claim.id, claim.queue, claim.slot)


def settled(s: Settlement) -> bytes:
    """b"" for a release by a live worker, which is no event. The error of a deferral is its reason."""
    claim, name = s.claim, event_type(s).published_as
    if not name:
        return b""
    problem, duration_ms = s.error or s.reason, s.duration_ms or 0
    return _event(name, claim.job, claim.id, claim.queue, claim.slot, problem, duration_ms, failures=s.is_failure)


def cancelled(id: str, queue: str, raw: bytes) -> bytes:
    """The event of a waiting job that was cancelled by its id; `raw` are the bytes in its record."""
    job = decode_or_none(raw)
    filepath = job.filepath if job is not None else ""
    return _encoder.encode(WireEvent(JobCancelled.published_as, id, None, queue, error="cancelled", filepath=filepath))


def buried(found: Buried) -> bytes:
    """The event of bytes that a claim buried."""
    return _event(JobDead.published_as, None, found.id, found.queue, found.slot, found.error)


def batch_finished(batch: Batch) -> bytes:
    counts = (batch.total, batch.completed, batch.dead, batch.cancelled, batch.deleted)
    return _encoder.encode(BatchWireEvent(BATCH_FINISHED, batch.id, *counts))


def _event(
    name: str,
    job: Job | None,
    id: str,
    queue: str = "",
    slot: str = "",
    problem: str = "",
    duration_ms: int = 0,
    *,
    failures: int = 0,
) -> bytes:
    if job is None:
        return _encoder.encode(WireEvent(name, id, None, queue, slot, duration_ms, problem))
    retries = job.retries + failures
    facts = (queue or job.priority, slot, duration_ms, problem, retries, job.filepath)
    return _encoder.encode(WireEvent(name, id, job.type, *facts))
