"""What a worker tells of the claims it gets and how they end: one event each, for logs, metrics and traces."""

from __future__ import annotations

from fileq.core.claim import Claim
from fileq.core.events import Emit
from fileq.core.job import parse_time
from fileq.core.settlement import Settlement, Verb

_ENDINGS = {
    Verb.COMPLETE: ("job.completed", "info"),
    Verb.RETRY: ("job.failed", "warning"),
    Verb.BURY: ("job.dead", "error"),
    Verb.RELEASE: ("job.released", "info"),
    Verb.CANCEL: ("job.cancelled", "info"),
}


def tell_claimed(claim: Claim, emit: Emit) -> None:
    fields = {"queue": claim.queue, "worker_id": claim.slot, "waited_ms": waited_ms(claim)}
    emit("job.claimed", level="debug", job_id=claim.id, job=claim.job, **fields)


def tell_settled(s: Settlement, emit: Emit) -> None:
    event, level = _ENDINGS[s.verb]
    fields = {"job_id": s.claim.id, "queue": s.claim.queue, "worker_id": s.claim.slot, "duration_ms": s.duration_ms}
    if s.claim.job is not None:
        fields |= {"trace_id": s.claim.job.trace_id, "span_id": s.claim.job.span_id}
    if s.error:
        fields["error"] = s.error
    if s.verb is Verb.RETRY:
        fields["delay_ms"] = s.delay_ms
    if s.superseded:
        fields["is_superseded"] = True
    if s.verb is Verb.BURY and s.is_failure:
        fields["is_failure"] = True
    emit("job.recovered" if s.died and s.verb is not Verb.BURY else event, level=level, **fields)


def tell_fenced(claim: Claim, emit: Emit) -> None:
    emit("job.fenced", level="warning", job_id=claim.id, job=claim.job, worker_id=claim.slot)


def waited_ms(claim: Claim) -> int | None:
    """From the moment the job was ready to its claim, by the clocks of those who wrote them down; None where the job
    does not tell: after a failure it was ready when its backoff was over, which only its record knows."""
    job = claim.job
    if job is None or job.retries or job.recoveries or not claim.claimed_ms:
        return None
    ready = parse_time(job.process_at or job.creation_time)
    return None if ready is None else max(0, claim.claimed_ms - round(ready.timestamp() * 1000))
