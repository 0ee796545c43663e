"""What only fileq itself may make: types and ids of jobs, and batches. One rule for every way in. Values only.

A job of a type of fileq's own acts for fileq: it reads files, signs messages and enqueues whole directories. The ids of
the jobs of schedules and callbacks can be known in advance, so a job of that id would keep theirs out. So clients,
handlers and configurations are refused both, and the record of a job that fileq made has an *origin*, which a program
that only pushes jobs can't write.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from fileq.core.batch import CallbackKind
from fileq.core.errors import JobError
from fileq.core.job import OWN_TAGS, Job

OWN_TYPES = "fileq."  # how the types of fileq's own jobs begin
SCHEDULE_IDS = "sched."  # how the ids of the jobs of schedules begin
CALLBACK_IDS = tuple(f".{kind}" for kind in CallbackKind)  # how the ids of the callbacks of batches end
DELIVERY_BATCHES = "delivery-"  # how the ids of the batches of deliveries begin; each is named after its directory
OWN = "fileq"  # the origin of a job of fileq's own whose type is a user's


def is_own_type(type: str | None) -> bool:
    return type is not None and type.startswith(OWN_TYPES)


def check_type(type: str | None) -> None:
    """Raises JobError for a type that only fileq's own jobs have."""
    if is_own_type(type):
        raise JobError(f"type {type!r:.120} is reserved: types that begin with '{OWN_TYPES}' are fileq's own")


def is_own_id(id: str) -> bool:
    return id.startswith(SCHEDULE_IDS) or id.endswith(CALLBACK_IDS)


def check_id(id: str) -> None:
    """Raises JobError for an id that schedules or batches may give to a job."""
    if is_own_id(id):
        ends = ", ".join(f"'{end}'" for end in CALLBACK_IDS)
        raise JobError(
            f"id {id!r:.220} is reserved: ids that begin with '{SCHEDULE_IDS}' are those of schedules, ids that end "
            f"with one of {ends} those of callbacks; choose another id"
        )


def check_tags(names: Iterable[str]) -> None:
    """Raises JobError for a tag that only a server adds: what a key may see depends on it."""
    for name in names:
        if name.startswith(OWN_TAGS):
            raise JobError(f"the tag {name!r:.120} is reserved: tags that begin with '{OWN_TAGS}' are fileq's own")


def is_own_batch(id: str | None) -> bool:
    return id is not None and id.startswith(DELIVERY_BATCHES)


def check_batch(id: str | None) -> None:
    """Raises JobError for a batch that only producers create, fill and seal."""
    if is_own_batch(id):
        raise JobError(
            f"batch {id!r:.220} is reserved: batches that begin with '{DELIVERY_BATCHES}' are those of "
            "producer.deliveries; use another batch"
        )


def check_job(job: Job, *, joins: bool = False) -> None:
    """Raises JobError for a job that only fileq itself may make. `joins`: it becomes a member of its batch."""
    check_type(job.type)
    check_id(job.id)
    if joins:
        check_batch(job.batch_id)


def foreign_error(id: str) -> str:
    """Why bytes of another program under the id of a job of fileq's own, or of a member of a batch, don't run."""
    return f"refused: another program enqueued these bytes under the id '{id}', which another job has"


def origin_of(job: Job) -> str:
    """What the record of a job that fileq made says about it. For a type of fileq's own it is a digest of what the job
    does: a copy with the same id and another payload does not match."""
    if not is_own_type(job.type):
        return OWN
    import hashlib  # it loads OpenSSL, and commands should start fast

    payload = b"" if job.payload is UNSET else bytes(job.payload)
    return hashlib.sha256(f"{job.type}\0".encode(errors="surrogatepass") + payload).hexdigest()
