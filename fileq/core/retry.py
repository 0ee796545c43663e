"""What becomes of a job after an attempt: (claim, outcome, policy) → settlement. Pure; time and chance are given.

Two budgets, kept apart. Failures count `retries`: the handler had its say. Deaths count `recoveries`: the process was
gone, and nobody knows whether this job killed it or merely stood beside the one that did. So the first death costs a
job nothing, and the following ones make it wait, until culprit and bystanders no longer die together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from fileq.core import settlement
from fileq.core.claim import Claim
from fileq.core.job import Job, Version, encode, rfc3339_ms
from fileq.core.outcome import Cancelled, Died, Done, Failed, Outcome, Refused, Released
from fileq.core.settlement import Settlement

Chance = Callable[[float, float], float]
ERROR_MAX = 4_000  # characters of an error that travel with a job


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
    """How often and how soon: the worker's, or the route's where it has its own; a job's own max_retries goes first."""

    max_retries: int
    max_recoveries: int
    backoff: Backoff


def delay_s(backoff: Backoff, failures: int, chance: Chance = random.uniform) -> float:
    """The pause after this many failures: by formula, times 1 ± jitter, then capped; or from the list, as it stands."""
    n = max(1, failures)
    if backoff.delays:
        return backoff.delays[min(n, len(backoff.delays)) - 1]
    base = backoff.base
    # Beyond this no real cap leaves a difference, and a float does not overflow.
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
    outcome: Outcome,
    policy: Policy,
    *,
    now_ms: int,
    duration_ms: int = 0,
    leaves: Version | None = None,
    spread_s: float = 0.0,
    chance: Chance = random.uniform,
) -> Settlement:
    """The settlement of a claim. Bytes that are no job can only be buried or released.

    `spread_s` draws apart, by chance, jobs that died together: a jitter of a few per cent would have them start, and
    die, together again."""
    match outcome:
        case Released():
            return settlement.release(claim, duration_ms=duration_ms)
        case Cancelled():
            return settlement.cancel(claim, duration_ms=duration_ms)
        case Done():
            return settlement.complete(
                claim,
                result=outcome.result,
                duration_ms=duration_ms,
                superseded=outcome.is_superseded,
                leaves=leaves,
            )
        case Failed():
            return _after_failure(claim, outcome, policy, now_ms, duration_ms, chance)
        case Refused():
            return _after_refusal(claim, outcome, now_ms)
        case Died():
            return _after_death(claim, outcome, policy, now_ms, duration_ms, spread_s, chance)


def _after_failure(
    claim: Claim, failed: Failed, policy: Policy, now_ms: int, duration_ms: int, chance: Chance
) -> Settlement:
    if claim.job is None:
        return _after_refusal(claim, Refused(failed.error, failed.kind), now_ms)
    error = _as_text(failed.error)
    retries = claim.job.retries + 1
    allowed = claim.job.max_retries if claim.job.max_retries is not None else policy.max_retries
    job = claim.job.but(retries=retries)
    if failed.is_permanent or retries > allowed:
        return settlement.bury(claim, dead(job, error, now_ms), error=error, kind=failed.kind, duration_ms=duration_ms)
    pause_s = failed.after_s if failed.after_s is not None else delay_s(policy.backoff, retries, chance)
    return settlement.retry(
        claim, encode(job), delay_ms=round(pause_s * 1000), error=error, kind=failed.kind, duration_ms=duration_ms
    )


def _after_refusal(claim: Claim, refused: Refused, now_ms: int) -> Settlement:
    """Nothing ran, so nothing counts against the job; what is no job goes as it came."""
    error = _as_text(refused.error)
    raw = claim.raw if claim.job is None else dead(claim.job, error, now_ms)
    return settlement.bury(claim, raw, error=error, kind=refused.kind, refused=True)


def _after_death(
    claim: Claim, died: Died, policy: Policy, now_ms: int, duration_ms: int, spread_s: float, chance: Chance
) -> Settlement:
    error = _as_text(died.cause)
    if claim.job is None:
        return settlement.bury(claim, claim.raw, error=claim.defect or error, died=True)
    recoveries = claim.job.recoveries + 1
    job = claim.job.but(recoveries=recoveries)
    if recoveries > policy.max_recoveries:
        return settlement.bury(claim, dead(job, error, now_ms), error=error, duration_ms=duration_ms, died=True)
    if recoveries == 1:
        return settlement.release(claim, encode(job), error=error, died=True, duration_ms=duration_ms)
    pause_s = delay_s(policy.backoff, recoveries - 1, chance) + (chance(0.0, spread_s) if spread_s else 0.0)
    return settlement.retry(
        claim, encode(job), delay_ms=round(pause_s * 1000), error=error, duration_ms=duration_ms, died=True
    )


def _as_text(error: str) -> str:
    """Bounded, and fit for JSON: an error may quote a file name that is not UTF-8."""
    return error[:ERROR_MAX].encode("utf-8", "backslashreplace").decode()


def dead(job: Job, error: str, now_ms: int) -> bytes:
    """The element that goes to the dead-letter list."""
    return encode(job.but(error=error, failed_at=rfc3339_ms(now_ms)))
