"""The retry policy: (claim, outcome, policy) → settlement. Pure: the caller passes the time and the random numbers.
Also what counts of a task that was asked to stop.

Two separate budgets. A failure counts in `retries`: the handler ran and failed. A death counts in `recoveries`: the
process ended, perhaps because of another job that ran in it. So the first death has no penalty. After later deaths the
job waits for its backoff, until the job that kills its process no longer runs together with the others.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from msgspec import Struct

from fileq.core import settlement
from fileq.core.job import COUNT_MAX, MADE_BY_TAG, Claim, Job, Version, encode, rfc3339_ms
from fileq.core.outcome import (
    TIMEOUT,
    Cancelled,
    Changed,
    Died,
    Done,
    Failed,
    FinalOutcome,
    Ran,
    Refused,
    Released,
    TaskOutcome,
    kind_of_death,
)
from fileq.core.settlement import Details, Settlement

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
            return settlement.complete(claim, result=outcome.result, duration_ms=duration_ms, leaves=leaves)
        case Failed(is_vanished=True):
            return _after_vanishing(claim, outcome, policy, now_ms)
        case Failed():
            return _after_failure(claim, outcome, policy, now_ms, duration_ms)
        case Refused():
            return _after_refusal(claim, outcome, now_ms)
        case Died():
            return _after_death(claim, outcome, policy, now_ms, duration_ms, spread_s)
        case Cancelled():
            return settlement.cancel(claim, error=outcome.reason, duration_ms=duration_ms)
        case Released():
            return settlement.release(claim, duration_ms=duration_ms)
        case _:
            assert_never(outcome)


def decide_changed(claim: Claim, its_job: str | None, *, may_run: bool) -> Settlement | None:
    """The settlement of a claim whose file is another version now; None if that version is to be run. `its_job` is the
    id that the ledger has for that version: with a job of its own, this one is superseded. `may_run` is False once the
    worker stops."""
    if its_job not in (None, claim.id):
        return settlement.complete(claim, superseded=True)
    return None if may_run else settlement.release(claim)


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
        return settlement.bury(claim, dead(job, error, now_ms), error=error, handler=policy.handler, **ran)
    pause_s = failed.after_s if failed.after_s is not None else delay_s(policy.backoff, retries)
    return settlement.retry(claim, encode(job), delay_ms=round(pause_s * 1000), error=error, **ran)


def _after_vanishing(claim: Claim, failed: Failed, policy: Policy, now_ms: int) -> Settlement:
    """A missing file does not come back by waiting: no retry, and no failure is counted. The first error of a job that
    was retried, or put back after its death, stays in the text: it is the one that has to be fixed."""
    assert claim.job is not None
    if policy.skips_vanished:
        return settlement.skip_vanished(claim)
    error = _as_text(failed.error)
    if first := claim.job.first_error:
        note = f"; retried, but {error}"
        error = first if first.endswith(note) else _as_text(first[: ERROR_MAX - len(note)] + note)
    ran = Details(kind=failed.kind, refused=True, vanished=True)  # no attempt was made
    return settlement.bury(claim, dead(claim.job, error, now_ms), error=error, handler=policy.handler, **ran)


def _after_refusal(claim: Claim, refused: Refused, now_ms: int) -> Settlement:
    """Nothing ran, so nothing is counted against the job. Bytes that are not a job are buried unchanged."""
    error = _as_text(refused.error)
    raw = claim.raw if claim.job is None else dead(claim.job, error, now_ms)
    return settlement.bury(claim, raw, error=error, kind=refused.kind, refused=True)


def _after_death(
    claim: Claim, died: Died, policy: Policy, now_ms: int, duration_ms: int | None, spread_s: float
) -> Settlement:
    error, kind = _as_text(died.error), kind_of_death(died.cause)
    if claim.job is None:
        return settlement.bury(claim, claim.raw, error=claim.defect or error, kind=kind, died=True)
    recoveries = min(claim.job.recoveries + 1, COUNT_MAX)
    job = claim.job.but(recoveries=recoveries, first_error=_first_error(claim.job, error), breaker_probe=False)
    ran = Details(kind=kind, duration_ms=duration_ms, died=True, output=died.output)
    if recoveries > policy.max_recoveries:
        return settlement.bury(claim, dead(job, error, now_ms), error=error, handler=policy.handler, **ran)
    if recoveries == 1:
        return settlement.release(claim, encode(job), error=error, **ran)
    pause_s = delay_s(policy.backoff, recoveries - 1) + random.uniform(0.0, spread_s)
    return settlement.retry(claim, encode(job), delay_ms=round(pause_s * 1000), error=error, **ran)


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
