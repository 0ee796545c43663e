"""A claim: one job in the hands of one slot."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from fileq.core.job import Job, raw_id


class ClaimKey(NamedTuple):
    """Names one claim: no slot uses a token twice."""

    slot: str
    token: int


class Claim(Struct, frozen=True):
    """A job that a slot holds. `raw` is the element exactly as it lies in the processing list.

    `token` numbers the claims of a slot, so that a settlement repeated after a lost reply is told from
    one about the same bytes claimed again. `job` is None when the bytes are not a job; `defect` says why.
    """

    slot: str
    token: int
    queue: str
    raw: bytes
    job: Job | None
    record_id: str | None = None
    claimed_ms: int = 0
    defect: str = ""

    @property
    def key(self) -> ClaimKey:
        return ClaimKey(self.slot, self.token)

    @property
    def id(self) -> str:
        return self.job.id if self.job is not None else raw_id(self.raw)
