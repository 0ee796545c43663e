"""The life of a job as a list of steps: when it was created, each attempt, what it waits for now, how it ended.

Does no I/O. What was not recorded is not guessed: how often a job was held back is known, but not when, so earlier
times are no steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fileq.client.job_summary import AttemptSummary
from fileq.client.obstacles import paused_queue
from fileq.server.api.job_document import JobDocument
from fileq.server.console.rendering import duration, seconds_between

RELEASED = "released"  # the outcome of an attempt that a worker gave back


class JobStep(Struct, frozen=True):
    """`at` is in RFC 3339; None for what has no time of its own. `notes` are what is known beside it."""

    word: str
    at: str | None
    notes: tuple[str, ...] = ()
    is_bad: bool = False


def paused_of(job: JobDocument) -> str:
    """The queue in which the job waits, if it is paused; otherwise ""."""
    return job.queue if paused_queue(job.queue) in job.waits_for else ""


def obstacles_in(job: JobDocument) -> list[str]:
    """What else keeps the job from running, without the commands that the command line names."""
    return [one.partition("; 'fileq ")[0] for one in job.waits_for if one != paused_queue(job.queue)]


def steps_of(job: JobDocument, now: str) -> list[JobStep]:
    """In the order of time. `now` is in RFC 3339."""
    return [JobStep("created", job.created_at), *_attempts(job), *_current(job, now)]


def _attempts(job: JobDocument) -> Iterator[JobStep]:
    forgotten = job.attempt_count - len(job.attempts)
    if forgotten and job.attempts:
        count = "1 earlier attempt is" if forgotten == 1 else f"{forgotten} earlier attempts are"
        yield JobStep(f"{count} no longer listed", None)
    before = None if forgotten else job.created_at
    for attempt in job.attempts:
        word = "claimed" if attempt.outcome == RELEASED else "started"
        numbered = word if job.attempt_count == 1 else f"attempt {attempt.number} {word}"
        yield JobStep(numbered, attempt.started, (*_wait(before, attempt.started, attempt.number == 1), _run(attempt)))
        before = attempt.ended


def _wait(before: str | None, at: str | None, is_first: bool) -> Iterator[str]:
    waited_s = seconds_between(before, at)
    if waited_s is not None:
        yield f"waited {duration(waited_s)}" if is_first else f"{duration(waited_s)} after the attempt before"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _run(attempt: AttemptSummary) -> str:
    """The broker counts from the claim to the settlement, the worker what its handler took."""
    whole_s = seconds_between(attempt.started, attempt.ended)
    if attempt.outcome == RELEASED:
        return f"put back into its queue after {duration(whole_s)}"
    if whole_s is None or whole_s <= attempt.duration_s:
        return f"took {duration(attempt.duration_s)}: {attempt.outcome}"
    return f"took {duration(whole_s)}, {duration(attempt.duration_s)} of it in the handler: {attempt.outcome}"


def _current(job: JobDocument, now: str) -> Iterator[JobStep]:
    """What the job does now, or how it ended."""
    last_ended = job.attempts[-1].ended if job.attempts else None
    before = last_ended or (job.created_at if not job.attempt_count else None)
    if job.is_finished:
        if job.started_at and not job.attempts and job.status == "completed":
            yield JobStep("started", job.started_at, tuple(_wait(before, job.started_at, not job.attempt_count)))
        yield JobStep(job.status, job.completed_at, is_bad=job.status == "dead")
    elif job.status == "running":
        runs_s = seconds_between(job.started_at, now)
        notes = (*_wait(before, job.started_at, not job.attempt_count), f"has run for {duration(runs_s)}")
        yield JobStep("started", job.started_at, notes)
    elif job.deferred:
        notes = (job.deferred, f"held back {times(job.deferred_count or 1)} so far")
        yield JobStep("held back, tried again", job.scheduled_at, notes)
    elif job.scheduled_at:
        yield JobStep("due", job.scheduled_at)
    elif (waits_s := seconds_between(before, now)) is not None:
        yield JobStep("waiting", None, (f"for {duration(waits_s)}",))
