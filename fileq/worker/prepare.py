"""Makes the task of a claim, or gives the reason why there is none. Reads neither the broker nor the file system."""

from __future__ import annotations

from fileq.core.claim import Claim
from fileq.core.job import MADE_BY_TAG
from fileq.core.outcome import Cancelled, Refused
from fileq.files.paths import Paths
from fileq.handlers.routes import Routes
from fileq.handlers.task import Task

DEADLINE_PASSED = Refused("deadline passed", "DeadlinePassed")


def is_overdue(claim: Claim) -> bool:
    """Whether the deadline of the job had passed at the time of the claim."""
    deadline_ms = claim.job.deadline_ms if claim.job is not None else None
    return deadline_ms is not None and deadline_ms <= claim.claimed_ms


def prepare(claim: Claim, routes: Routes, paths: Paths, *, runs_changed: bool = False) -> Task | Refused | Cancelled:
    """The task; Refused if the bytes are not a job, no route takes it, or its deadline has passed; Cancelled if its
    batch is. Never raises.

    A deadline is compared with the broker's time of the claim, which begins within milliseconds: the clocks of workers
    differ. Most such jobs are dead before they are claimed (deadlines.py)."""
    try:
        return _task_of(claim, routes, paths, runs_changed)
    except Exception as error:
        # Any program can push a job. One that fileq was not made for must not end the worker, which has others to run.
        return Refused(f"can't be prepared: {error!r}", "CannotPrepare")


def _task_of(claim: Claim, routes: Routes, paths: Paths, runs_changed: bool) -> Task | Refused | Cancelled:
    job = claim.job
    if job is None:
        return Refused(claim.defect, "Undecodable")
    if claim.is_cancelled:
        return Cancelled(f"batch {job.batch_id} was cancelled" if job.batch_id else "its batch was cancelled")
    if is_overdue(claim):
        return DEADLINE_PASSED
    path = paths.here(job.path) if job.filepath else b""
    number = routes.find(job, paths.relative(path) if path else "")
    if number is None:
        return Refused(routes.refusal(job), "NoHandler")
    attempt = job.retries + job.recoveries + 1
    timeout_s = routes[number].timeout
    if job.timeout is not None:
        # A client with a limited key can shorten what the operator allows, not extend it.
        timeout_s = min(job.timeout, timeout_s) if MADE_BY_TAG in job.tag_values else job.timeout
    return Task(claim.key, claim.raw, number, path, paths.allowed, attempt, timeout_s, runs_changed)
