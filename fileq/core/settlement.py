"""How a claim ends, on its way to the broker: values only. The retry policy makes them, brokers apply them."""

from __future__ import annotations

import enum

from msgspec import Struct

from fileq.core.claim import Claim
from fileq.core.job import Version


class Verb(enum.StrEnum):
    """The ways a claim ends. One Lua file, one method of the model and one test file each."""

    COMPLETE = "complete"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"
    CANCEL = "cancel"


class Settlement(Struct, frozen=True):
    """How one claim ends. `raw` is the element as it travels on; `died` marks the death of a worker,
    which counts as a recovery and never as a failure; `refused` marks a job that nobody tried to run, which counts as
    neither. Make one with the functions below."""

    verb: Verb
    claim: Claim
    raw: bytes
    error: str = ""
    kind: str = ""  # of the error, for the hourly counters: an exception's name, never its text
    delay_ms: int = 0
    duration_ms: int = 0
    result: bytes = b""
    died: bool = False
    refused: bool = False
    superseded: bool = False
    leaves: Version | None = None

    def __post_init__(self) -> None:
        if self.claim.job is None and self.verb not in (Verb.BURY, Verb.RELEASE):
            raise ValueError(f"bytes that are not a job can be buried or released; not {self.verb}")

    @property
    def is_failure(self) -> bool:
        """Whether an attempt was made, and failed."""
        return self.verb in (Verb.RETRY, Verb.BURY) and not self.died and not self.refused

    @property
    def outcome(self) -> str:
        """The word for this attempt in the job's history."""
        if self.died:
            return "died"
        if self.refused:
            return "refused"
        if self.superseded:
            return "superseded"
        return _OUTCOMES[self.verb]


_OUTCOMES = {
    Verb.COMPLETE: "completed",
    Verb.RETRY: "failed",
    Verb.BURY: "failed",
    Verb.RELEASE: "released",
    Verb.CANCEL: "cancelled",
}


def complete(
    claim: Claim, *, result: bytes = b"", duration_ms: int = 0, superseded: bool = False, leaves: Version | None = None
) -> Settlement:
    """The job is done. `leaves` is the version its handler left behind, which the ledger then knows."""
    return Settlement(
        Verb.COMPLETE, claim, claim.raw, result=result, duration_ms=duration_ms, superseded=superseded, leaves=leaves
    )


def retry(
    claim: Claim, raw: bytes, *, delay_ms: int, error: str, kind: str = "", duration_ms: int = 0, died: bool = False
) -> Settlement:
    """The attempt failed; `raw` waits out its delay and goes back to the queue it came from."""
    return Settlement(
        Verb.RETRY, claim, raw, error, kind, delay_ms=max(0, delay_ms), duration_ms=duration_ms, died=died
    )


def bury(
    claim: Claim,
    raw: bytes,
    *,
    error: str,
    kind: str = "",
    duration_ms: int = 0,
    died: bool = False,
    refused: bool = False,
) -> Settlement:
    """No further attempt; `raw` goes to the dead-letter list."""
    return Settlement(Verb.BURY, claim, raw, error, kind, duration_ms=duration_ms, died=died, refused=refused)


def release(
    claim: Claim, raw: bytes | None = None, *, error: str = "", died: bool = False, duration_ms: int = 0
) -> Settlement:
    """Back to the front of its queue, nothing counted against the job but, if its worker died, a recovery."""
    return Settlement(Verb.RELEASE, claim, claim.raw if raw is None else raw, error, died=died, duration_ms=duration_ms)


def cancel(claim: Claim, *, error: str = "cancelled", duration_ms: int = 0) -> Settlement:
    return Settlement(Verb.CANCEL, claim, claim.raw, error, duration_ms=duration_ms)


class SettleResult(enum.StrEnum):
    """What a broker says to a settlement."""

    DONE = "done"
    DONE_ALREADY = "done already"  # a repeat after a lost reply; no second effect
    FENCED = "fenced"  # this slot no longer holds the job; nothing changed
