"""A claim: one job that one slot holds. A value only."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from fileq.core.job import Job, raw_id


class ClaimKey(NamedTuple):
    """Identifies one claim: no slot uses a token twice."""

    slot: str
    token: int


class Claim(Struct, frozen=True):
    slot: str
    token: int  # counts the slot's claims; a settlement whose token is settled already is a repeat
    queue: str
    raw: bytes  # exactly as in the slot's processing list
    job: Job | None  # None if the bytes are not a job
    record_id: str | None = None  # of the record that the claim wrote; None if the bytes have no readable id
    claimed_ms: int = 0
    defect: str = ""  # why the bytes are not a job
    # An earlier job of the same file is running, or a job that it waits for is unfinished. Set in a claim to run.
    is_blocked: bool = False
    is_cancelled: bool = False  # its batch is cancelled: it must be settled as cancelled. Set in a claim to run.

    @property
    def key(self) -> ClaimKey:
        return ClaimKey(self.slot, self.token)

    @property
    def id(self) -> str:
        return self.job.id if self.job is not None else raw_id(self.raw)

    @property
    def version(self) -> str | None:
        """The signature of the file that the job is about."""
        return self.job.version if self.job is not None else None

    @property
    def is_probe(self) -> bool:
        """An operator tries this job to see if a cause is fixed."""
        return self.job is not None and self.job.breaker_probe

    @property
    def has_failed(self) -> bool:
        """An attempt of it has failed or died, since an operator put it back last."""
        return self.job is not None and (self.job.retries > 0 or self.job.recoveries > 0)


class Buried(Struct, frozen=True):
    """Bytes that a broker buried instead of giving them to the slot: they are too long to be decoded, or another job
    has their id."""

    id: str
    slot: str
    queue: str
    error: str
