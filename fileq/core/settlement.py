"""A settlement: how a claim ends, on its way to the broker. Values only.

The retry policy makes settlements; brokers apply them. Nothing here decides or does I/O.
"""

from __future__ import annotations

import enum
from typing import TypedDict, Unpack

from msgspec import Struct

from fileq.core.fingerprint import fingerprint
from fileq.core.job import Claim, Version
from fileq.core.outcome import FollowUp, Output


class Verb(enum.StrEnum):
    """The ways a claim ends. Each has one Lua file, one branch in the other brokers and one conformance test file."""

    COMPLETE = "complete"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"
    CANCEL = "cancel"
    DEFER = "defer"


class Settlement(Struct, frozen=True):
    """How one claim ends. Make one with the functions below.

    `next_raw` replaces the claim's bytes. `died` means that the worker died, which counts as a recovery and not as a
    failure. `refused` means that no attempt was made, which counts as neither. `vanished` means the same, because the
    file no longer exists. `reason` is why a job is deferred. `traceback` and `output`, the end of what the handler
    printed, are kept with the attempt. `order` is what is to be done with the file afterwards; brokers/protocol.py
    keeps it. Only `complete` and `bury` have one. `follow_ups` are enqueued in the same step. `outputs` are the
    files that the job made; only `complete` has them. `fingerprint` groups dead jobs by cause; only `bury` has one."""

    verb: Verb
    claim: Claim
    next_raw: bytes
    error: str = ""
    kind: str = ""  # the error's class for the hourly counters, for example an exception's name; never its text
    delay_ms: int = 0
    duration_ms: int | None = None  # of the attempt, as the worker measured it; None: nothing ran, or a reaper settles
    result: bytes = b""
    died: bool = False
    refused: bool = False
    superseded: bool = False
    leaves: Version | None = None
    reason: str = ""
    vanished: bool = False
    traceback: str = ""
    output: str = ""
    order: bytes = b""
    follow_ups: tuple[FollowUp, ...] = ()
    outputs: tuple[Output, ...] = ()
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.outputs and self.verb is not Verb.COMPLETE:
            raise ValueError(f"only a completed job has outputs; not {self.verb}")
        if self.claim.job is None and self.verb not in (Verb.BURY, Verb.RELEASE):
            raise ValueError(f"bytes that are not a job can be buried or released; not {self.verb}")

    @property
    def is_failure(self) -> bool:
        """Whether an attempt was made and failed."""
        return self.verb in (Verb.RETRY, Verb.BURY) and not self.died and not self.refused

    @property
    def outcome(self) -> str:
        if self.died:
            return "died"
        if self.vanished:
            return "skipped" if self.verb is Verb.COMPLETE else "vanished"
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
    Verb.DEFER: "deferred",
}


class Details(TypedDict, total=False):
    kind: str
    duration_ms: int | None
    died: bool
    refused: bool
    vanished: bool
    traceback: str
    output: str


def complete(
    claim: Claim,
    *,
    result: bytes = b"",
    duration_ms: int | None = None,
    superseded: bool = False,
    leaves: Version | None = None,
) -> Settlement:
    """The job is done. `leaves` is the version of the file after its handler ran; the ledger learns it."""
    return Settlement(
        Verb.COMPLETE, claim, claim.raw, result=result, duration_ms=duration_ms, superseded=superseded, leaves=leaves
    )


def retry(claim: Claim, next_raw: bytes, *, delay_ms: int, error: str, **details: Unpack[Details]) -> Settlement:
    """The attempt failed. `next_raw` is scheduled; after the delay it goes back to the queue it came from."""
    return Settlement(Verb.RETRY, claim, next_raw, error, delay_ms=max(0, delay_ms), **details)


def bury(claim: Claim, next_raw: bytes, *, error: str, handler: str = "", **details: Unpack[Details]) -> Settlement:
    """There is no further attempt. `next_raw` goes to the dead letters. `handler` is the name of the job's route, if it
    is known. The type of a job counts before it in the fingerprint: a reader of the record knows only the type."""
    if (job := claim.job) is None:
        group = fingerprint(error)
    else:
        group = fingerprint(error, job.type or handler, details.get("traceback", ""), job.filepath)
    return Settlement(Verb.BURY, claim, next_raw, error, fingerprint=group, **details)


def release(claim: Claim, next_raw: bytes | None = None, *, error: str = "", **details: Unpack[Details]) -> Settlement:
    """The job goes back to the front of its queue. No failure is counted; with `died`, a recovery is."""
    return Settlement(Verb.RELEASE, claim, claim.raw if next_raw is None else next_raw, error, **details)


def skip_vanished(claim: Claim) -> Settlement:
    """The job is done: its file no longer exists, and that is expected. Nothing ran."""
    return Settlement(Verb.COMPLETE, claim, claim.raw, vanished=True)


def cancel(claim: Claim, *, error: str = "cancelled", duration_ms: int | None = None) -> Settlement:
    return Settlement(Verb.CANCEL, claim, claim.raw, error, duration_ms=duration_ms)


def defer(claim: Claim, *, reason: str, delay_ms: int) -> Settlement:
    """The job cannot run yet, for this reason. No attempt is made and nothing is counted: the same bytes are scheduled,
    and after the delay they go to the end of the queue they came from."""
    return Settlement(Verb.DEFER, claim, claim.raw, delay_ms=max(0, delay_ms), reason=reason)


class SettleResult(enum.StrEnum):
    DONE = "done"
    DONE_ALREADY = "done already"  # a repeat after a lost reply; no second effect
    FENCED = "fenced"  # the slot no longer holds the job; nothing changed
