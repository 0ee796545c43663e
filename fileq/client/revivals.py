"""Dead jobs put back into their queues: what they look like then, and why one stays dead."""

from __future__ import annotations

from fileq.brokers.types import Record, Revival, Revived
from fileq.client.job_filter import ENDED, StoredJob
from fileq.core.job import State, decode_or_none, encode
from fileq.core.text import printable

GONE = "it left the dead-letter queue a moment ago"
NOT_A_JOB = "these bytes are not a job, and a retry would bury them again; delete them"


def revival(dead: StoredJob, queue: str, *, is_probe: bool = False) -> Revival:
    """The job as new. If its file was moved after it had died, the job is for the file where it is now. A probe is the
    next job of its queue, and no open breaker defers it."""
    assert dead.job is not None
    fresh = dead.job.but(
        retries=0, recoveries=0, error=None, failed_at=None, first_error=dead.error or None, breaker_probe=is_probe
    )
    if dead.record is not None and dead.record.moved_to:
        fresh = fresh.at(dead.record.moved_to)
    return Revival(dead.raw, dead.id, encode(fresh), queue, is_next=is_probe)


def why_stayed(answer: Revived) -> str:
    """Why a job was not put back; empty if it was."""
    if answer.is_revived:
        return ""
    if answer.is_foreign:
        return "another program enqueued it under the id of another job"
    if answer.held_by:
        return f"job {printable(answer.held_by)} has the same unique key and is not finished"
    return GONE


def not_dead(record: Record, next_step: str) -> str:
    return f"it is {record.state.value}, not dead; {next_step}"


def to_run(record: Record) -> str:
    """How to run a job that is not dead."""
    if record.state in ENDED:
        job = decode_or_none(record.raw)
        if job is not None and not job.filepath:
            return "'fileq enqueue' makes a new job"
        return "'fileq reprocess --match GLOB' enqueues its file again"
    if record.state is State.RUNNING:
        return "it needs no retry"
    return "a worker will run it" if record.state is State.PENDING else "a worker will run it when it is due"
