"""Events for tests of listeners: only the fields that a test is about need values."""

from __future__ import annotations

from typing import Any

from fileq.core.events import AttemptEnded, JobClaimed, JobFenced
from fileq.core.job import Job


def claim_event(job: Job | None, slot: str = "slot", waited_ms: int | None = None, token: int = 1) -> JobClaimed:
    id = job.id if job is not None else "raw-1"
    return JobClaimed(id, None, None, "", "", "low", slot, waited_ms, job, token=token)


def end_event(kind: type[AttemptEnded], job_id: str = "job", **fields: Any) -> AttemptEnded:
    values = {"queue": "low", "worker_id": "slot", "duration_ms": 0, "error": None, "trace_id": "", "span_id": ""}
    return kind(job_id=job_id, filepath=None, type=None, **{**values, **fields})


def fence_event(job_id: str = "job", slot: str = "slot") -> JobFenced:
    return JobFenced(job_id, None, None, "", "", slot)
