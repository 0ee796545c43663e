"""What a settlement brings besides the job's own move: jobs to enqueue and files that the job made. Values only.

A follow-up exists if and only if its settlement took effect: the broker applies both in one atomic step.
"""

from __future__ import annotations

from msgspec import Struct

from fileq.core.job import Job, Version

FOLLOW_UPS_MAX = 100  # of one attempt
FOLLOW_UPS_MAX_BYTES = 256 << 10  # of one attempt, all together
OUTPUTS_MAX = 1_000  # of one attempt


class FollowUp(Struct, frozen=True):
    """A job to enqueue in the same step as another change.

    It is due `delay_ms` after that step or at `at_ms`, the later of the two. It is enqueued also if the ledger knows
    its `version`; the ledger learns the version, so that no producer enqueues it again."""

    job: Job
    queue: str
    delay_ms: int = 0
    at_ms: int = 0
    version: Version | None = None
    joins: bool = False  # the job becomes a member of the batch that its `batch_id` names
    is_own: bool = False  # fileq made the job, see core/own_jobs.py


class Output(Struct, frozen=True):
    """A file that a job made, as it was when the job ended."""

    path: bytes
    size: int
    signature: str  # see core/signature.py


class FollowUpRequest(Struct, frozen=True, omit_defaults=True):
    """A follow-up as its handler requested it, checked. Plain data, so that a child process can send it to its worker.

    A job of a `type`, with its `payload` in JSON (empty: none), or about the file at `path` on this machine. An empty
    `priority` stands for the queue of the job that it follows."""

    id: str
    type: str = ""
    payload: bytes = b""
    path: bytes = b""
    size: int = 0
    signature: str = ""
    priority: str = ""
    delay_ms: int = 0
    at_ms: int = 0
    unique_key: str | None = None
    max_retries: int | None = None
    timeout_s: float | None = None
    deadline: str | None = None
    joins: bool = False  # it becomes a member of the batch of the job that it follows


class Made(Struct, frozen=True, omit_defaults=True):
    """What a handler wants to leave behind if its job is completed."""

    follow_ups: tuple[FollowUpRequest, ...] = ()
    outputs: tuple[Output, ...] = ()


def follow_up_id(parent_id: str, *place: object) -> str:
    """The id of the follow-up at this place of its parent, always the same: a run that is repeated gives the same ids.

    It does not contain the parent's id: a prefix of that must stay enough to name the parent, and the ids of a long
    chain of jobs must not grow."""
    import hashlib  # needed here only, and commands should start fast

    text = "\0".join((parent_id, *map(str, place))).encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=16, person=b"fileq follow-up").hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))
