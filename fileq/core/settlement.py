"""A settlement: how a claim ends, on its way to the broker; and the retry policy, which makes it of a claim and an
outcome. Also what counts of a task that was asked to stop. Brokers apply settlements. Pure: the caller passes the time
and the random numbers.

The policy has two separate budgets. A failure counts in `retries`: the handler ran and failed. A death counts in
`recoveries`: the process ended, perhaps because of another job that ran in it. So the first death has no penalty. After
later deaths the job waits for its backoff, until the job that kills its process no longer runs together with the
others.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict, Unpack, assert_never

from msgspec import Struct

from fileq.core.fingerprint import fingerprint
from fileq.core.job import COUNT_MAX, MADE_BY_TAG, Claim, Job, Version, encode, rfc3339_ms
from fileq.core.outcome import (
    TIMEOUT,
    Cancelled,
    Changed,
    Died,
    Done,
    Failed,
    FinalOutcome,
    FollowUp,
    Output,
    Ran,
    Refused,
    Released,
    TaskOutcome,
    kind_of_death,
)


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


# the retry policy

Chance = Callable[[float, float], float]
ERROR_MAX = 4_000  # characters of an error that are stored with a job
FIRST_ERROR_MAX = 500  # characters of the first error that a job keeps while it is retried


class Backoff(Protocol):
    """The delays between attempts, as `worker.backoff` or a route sets them. Times are in seconds."""

    @property
    def strategy(self) -> str: ...
    @property
    def base(self) -> float: ...
    @property
    def max(self) -> float: ...
    @property
    def jitter(self) -> float: ...
    @property
    def delays(self) -> Sequence[float]: ...


class Policy(Struct, frozen=True):
    """How often and how soon a job is tried again. A job's own `max_retries` takes precedence."""

    max_retries: int
    max_recoveries: int
    backoff: Backoff
    skips_vanished: bool = False  # a job whose file no longer exists is completed, not dead
    handler: str = ""  # the name of the route, which is part of a dead job's fingerprint


def delay_s(backoff: Backoff, failures: int, chance: Chance = random.uniform) -> float:
    """The delay after this many failures: the formula times 1 ± jitter, then capped; or the list's entry, unchanged."""
    n = max(1, failures)
    if backoff.delays:
        return backoff.delays[min(n, len(backoff.delays)) - 1]
    base = backoff.base
    # A higher exponent exceeds every cap anyway, and this one does not overflow a float.
    exponent = min(n, 64)
    grown = {
        "exponential": base * 2.0 ** (exponent - 1),
        "linear": base * n,
        "fixed": base,
        "power": min(base, 1e4) ** exponent,
    }[backoff.strategy]
    return min(backoff.max, grown * chance(1 - backoff.jitter, 1 + backoff.jitter))


def decide(
    claim: Claim,
    outcome: FinalOutcome,
    policy: Policy,
    *,
    now_ms: int,
    duration_ms: int | None = None,
    leaves: Version | None = None,
    spread_s: float = 0.0,
) -> Settlement:
    """The settlement of a claim. Bytes that are not a job can only be buried or released. `leaves` is the version of
    the file that its handler left. `spread_s` adds a random delay for jobs that died together: with a jitter of a few
    per cent they would start, and die, together again."""
    match outcome:
        case Done():
            return complete(claim, result=outcome.result, duration_ms=duration_ms, leaves=leaves)
        case Failed(is_vanished=True):
            return _after_vanishing(claim, outcome, policy, now_ms)
        case Failed():
            return _after_failure(claim, outcome, policy, now_ms, duration_ms)
        case Refused():
            return _after_refusal(claim, outcome, now_ms)
        case Died():
            return _after_death(claim, outcome, policy, now_ms, duration_ms, spread_s)
        case Cancelled():
            return cancel(claim, error=outcome.reason, duration_ms=duration_ms)
        case Released():
            return release(claim, duration_ms=duration_ms)
        case _:
            assert_never(outcome)


def decide_changed(claim: Claim, its_job: str | None, *, may_run: bool) -> Settlement | None:
    """The settlement of a claim whose file is another version now; None if that version is to be run. `its_job` is the
    id that the ledger has for that version: with a job of its own, this one is superseded. `may_run` is False once the
    worker stops."""
    if its_job not in (None, claim.id):
        return complete(claim, superseded=True)
    return None if may_run else release(claim)


def _after_failure(claim: Claim, failed: Failed, policy: Policy, now_ms: int, duration_ms: int | None) -> Settlement:
    if claim.job is None:
        return _after_refusal(claim, Refused(failed.error, failed.kind), now_ms)
    error = _as_text(failed.error)
    retries = min(claim.job.retries + 1, COUNT_MAX)
    allowed = policy.max_retries
    if (own := claim.job.max_retries) is not None:
        # As for the timeout in worker/pump.py.
        allowed = min(own, allowed) if MADE_BY_TAG in claim.job.tag_values else own
    job = claim.job.but(retries=retries, first_error=_first_error(claim.job, error), breaker_probe=False)
    ran = Details(kind=failed.kind, duration_ms=duration_ms, traceback=failed.traceback, output=failed.output)
    if failed.is_permanent or retries > allowed:
        return bury(claim, dead(job, error, now_ms), error=error, handler=policy.handler, **ran)
    pause_s = failed.after_s if failed.after_s is not None else delay_s(policy.backoff, retries)
    return retry(claim, encode(job), delay_ms=round(pause_s * 1000), error=error, **ran)


def _after_vanishing(claim: Claim, failed: Failed, policy: Policy, now_ms: int) -> Settlement:
    """A missing file does not come back by waiting: no retry, and no failure is counted. The first error of a job that
    was retried, or put back after its death, stays in the text: it is the one that has to be fixed."""
    assert claim.job is not None
    if policy.skips_vanished:
        return skip_vanished(claim)
    error = _as_text(failed.error)
    if first := claim.job.first_error:
        note = f"; retried, but {error}"
        error = first if first.endswith(note) else _as_text(first[: ERROR_MAX - len(note)] + note)
    ran = Details(kind=failed.kind, refused=True, vanished=True)  # no attempt was made
    return bury(claim, dead(claim.job, error, now_ms), error=error, handler=policy.handler, **ran)


def _after_refusal(claim: Claim, refused: Refused, now_ms: int) -> Settlement:
    """Nothing ran, so nothing is counted against the job. Bytes that are not a job are buried unchanged."""
    error = _as_text(refused.error)
    raw = claim.raw if claim.job is None else dead(claim.job, error, now_ms)
    return bury(claim, raw, error=error, kind=refused.kind, refused=True)


def _after_death(
    claim: Claim, died: Died, policy: Policy, now_ms: int, duration_ms: int | None, spread_s: float
) -> Settlement:
    error, kind = _as_text(died.error), kind_of_death(died.cause)
    if claim.job is None:
        return bury(claim, claim.raw, error=claim.defect or error, kind=kind, died=True)
    recoveries = min(claim.job.recoveries + 1, COUNT_MAX)
    job = claim.job.but(recoveries=recoveries, first_error=_first_error(claim.job, error), breaker_probe=False)
    ran = Details(kind=kind, duration_ms=duration_ms, died=True, output=died.output)
    if recoveries > policy.max_recoveries:
        return bury(claim, dead(job, error, now_ms), error=error, handler=policy.handler, **ran)
    if recoveries == 1:
        return release(claim, encode(job), error=error, **ran)
    pause_s = delay_s(policy.backoff, recoveries - 1) + random.uniform(0.0, spread_s)
    return retry(claim, encode(job), delay_ms=round(pause_s * 1000), error=error, **ran)


def _first_error(job: Job, error: str) -> str | None:
    """The error of the first attempt; of a job that was put back, the one that it had died of. Kept in the bytes of
    the job, in case that its file vanishes before the next attempt."""
    return job.first_error or error[:FIRST_ERROR_MAX] or None


def _as_text(error: str) -> str:
    """Bounded, and valid in JSON: an error may quote a file name that is not UTF-8."""
    return error[:ERROR_MAX].encode("utf-8", "backslashreplace").decode()


def dead(job: Job, error: str, now_ms: int) -> bytes:
    return encode(job.but(error=error, failed_at=rfc3339_ms(now_ms), first_error=None, breaker_probe=False))


# Requests to stop a running task, and the outcome of a task that got one. The same in processes and in threads.

# How handlers stop if they are asked to, in the words of docs/handlers.md; TIMEOUT if they have to be stopped by force.
_USUAL = frozenset(("InterruptedError", "CancelledError", "KeyboardInterrupt", "Retry", TIMEOUT))


class StopRequest(enum.Enum):
    NONE = enum.auto()
    CANCEL = enum.auto()  # the job was cancelled
    QUIT = enum.auto()  # the worker stops


def outcome_after(request: StopRequest, ran: Ran) -> TaskOutcome:
    """The outcome of a task that ended with `ran` after this request.

    When the worker stops, only a handler that finished counts. An exception or a killed command is most likely the
    reaction to context.cancelled, and a shutdown must not count as a failure of the job. An exception that is not the
    usual reaction is kept for the log: it may be a real error that happened while the handler stopped."""
    match request:
        case StopRequest.CANCEL:
            return Cancelled(raised=_unusual(ran))
        case StopRequest.QUIT if not isinstance(ran, Done | Changed):
            return Released(raised=_unusual(ran))
    return ran


def _unusual(ran: Ran) -> Failed | None:
    return ran if isinstance(ran, Failed) and ran.traceback and ran.kind not in _USUAL else None
