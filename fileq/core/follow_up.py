"""What a settlement brings besides the job's own move: jobs to enqueue and files that the job made. Values only.

A follow-up exists if and only if its settlement took effect: the broker applies both in one atomic step.
"""

from __future__ import annotations

from msgspec import Struct

from fileq.core.job import Job, Version


class FollowUp(Struct, frozen=True):
    """A job to enqueue in the same step as another change.

    It is due `delay_ms` after that step or at `at_ms`, the later of the two. It is enqueued also if the ledger knows
    its `version`; the ledger learns the version, so that no producer enqueues it again."""

    job: Job
    queue: str
    delay_ms: int = 0
    at_ms: int = 0
    version: Version | None = None


class Output(Struct, frozen=True):
    """A file that a job made, as it was when the job ended."""

    path: bytes
    size: int
    signature: str  # see core/signature.py
