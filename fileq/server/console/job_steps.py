"""The life of a job as a list of steps: when it was created, each attempt, its deaths, what people did, how it ended.

Does no I/O. What was not recorded is not guessed: how often a job was deferred is known, and when first and last, but
not each time, so these times are no steps. Who retried or cancelled a job is known as long as the log of actions
has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from msgspec import Struct

from fileq.actions.bulk import JobAction
from fileq.commands.action_log import LoggedAction, actions_on
from fileq.commands.admin.pauses import PastPause
from fileq.core.job import State
from fileq.core.schedule import schedule_of
from fileq.queries.documents import RELEASED, AttemptDocument, JobDocument
from fileq.queries.job_queries import paused_queue
from fileq.server.console.view import duration, moment, seconds_between, why

Pauses: TypeAlias = Mapping[str, tuple[PastPause, ...]]
_NO_PAUSES: Pauses = {}
PAUSES_SHOWN = 3  # of one wait, the last ones
CLOCKS_S = 5.0
BREAKER, IS_OPEN = "the circuit breaker of ", " is open"  # how the reason of a breaker begins and ends


class JobStep(Struct, frozen=True):
    """`at` is in RFC 3339; None for what has no time of its own. `notes` are what is known beside it."""

    word: str
    at: str | None
    notes: tuple[str, ...] = ()
    is_bad: bool = False


def paused_of(job: JobDocument) -> str:
    """The queue in which the job waits, if it is paused; otherwise ""."""
    return job.queue if paused_queue(job.queue) in job.waits_for else ""


def attempts_text(job: JobDocument) -> str:
    """How many attempts count against the limit, which starts over when a dead job is put back, and how many there were
    in all. Those that a worker gave back, and those whose process died, do not count."""
    is_running = job.status == "running"
    total = job.attempt_count + is_running
    was_stopped = job.status == "cancelled" and bool(job.attempts) and job.attempts[-1].outcome == "cancelled"
    # `retry_count` has those that failed.
    counted = min(total, job.retry_count + (is_running or job.status == "completed" or was_stopped))
    shown = total if job.max_retries is None else counted
    text = f"{shown}, {'' if shown == 1 else 'the last one '}running now" if is_running else str(shown)
    if job.max_retries is None:
        return text
    return f"{text}, at most {job.max_retries + 1}" + (f"; {total} in total" if total != counted else "")


def waits_in(job: JobDocument) -> list[str]:
    """What else keeps the job from running, without the commands that the command line names."""
    return [one.partition("; 'fileq ")[0] for one in job.waits_for if one != paused_queue(job.queue)]


def what_then(reason: str | None) -> str:
    """What happens when a deferred job is due."""
    return "then the breaker lets one job run" if (reason or "").startswith(BREAKER) else "then fileq tries it again"


def reasons_of(job: JobDocument) -> list[str]:
    """Why the job was deferred before its attempts, and is now; each reason once."""
    found = [*(past(one.deferred) for one in job.attempts), job.deferred]
    return list(dict.fromkeys(reason for reason in found if reason))


def past(reason: str) -> str:
    """A reason why a job was deferred before: what was so need not be so now."""
    return f"{reason.removesuffix(IS_OPEN)} was open" if reason.endswith(IS_OPEN) else reason


def deferred_times(job: JobDocument) -> str:
    """How often the job was deferred and when; "" if it never was."""
    return f"{times(job.deferred_count)}{_deferred_between(job)}" if job.deferred_count else ""


def _deferred_between(job: JobDocument) -> str:
    """When it was deferred, as the end of a sentence; "" in lists, which do not say it."""
    if not job.first_deferred_at or not job.last_deferred_at:
        return ""
    first, last = moment(job.first_deferred_at), moment(job.last_deferred_at)
    if job.deferred_count == 1 or first == last:
        return f" at {first}"
    return f" between {first.removesuffix(' UTC')} and {last[11:] if first[:10] == last[:10] else last}"


def steps_of(job: JobDocument, log: Sequence[LoggedAction] = (), pauses: Pauses = _NO_PAUSES) -> list[JobStep]:
    """In the order of time. `log` is the log of what people did, `pauses` those that have ended, by queue."""
    paused = pauses.get(job.queue, ())
    done = actions_on(log, job.id, job.batch_id)
    retries = [one for one in done if one.action is JobAction.RETRY]
    runs = [one for one in done if one.action is JobAction.RUN]
    scheduled = schedule_of(job.id)
    is_manual = scheduled is not None and scheduled[1]
    by_hand = (f"manual run{f' by {runs.pop(0).by}' if runs else ''}",) if is_manual else ()
    steps = [JobStep("created", job.created_at, by_hand), *_attempts(job, paused, retries)]
    for one in runs:
        later = (i for i, step in enumerate(steps) if step.at and step.at > one.at)
        steps.insert(next(later, len(steps)), JobStep("run manually", one.at, (f"by {one.by}",)))
    return [*steps, *_current(job, paused, [one for one in done if one.action is JobAction.CANCEL])]


def _attempts(job: JobDocument, paused: Sequence[PastPause], retries: Sequence[LoggedAction]) -> Iterator[JobStep]:
    forgotten = job.attempt_count - len(job.attempts)
    if forgotten and job.attempts:
        count = "1 earlier attempt is" if forgotten == 1 else f"{forgotten} earlier attempts are"
        yield JobStep(f"{count} no longer listed", None)
    before = None if forgotten else job.created_at
    for attempt, following in zip_longest(job.attempts, job.attempts[1:]):
        word = "claimed" if attempt.outcome == RELEASED else "started"
        numbered = word if job.attempt_count == 1 else f"attempt {attempt.number} {word}"
        waits = (*_wait(job, paused, before, attempt.started_at, attempt.number), *_deferred(job, attempt))
        yield JobStep(numbered, attempt.started_at, (*waits, _run(attempt)))
        before = attempt.ended_at
        if attempt.is_fatal and (following is not None or job.status != State.DEAD):
            yield JobStep("died", attempt.ended_at, is_bad=True)
            yield _retried(attempt, following, retries)


def _deferred(job: JobDocument, attempt: AttemptDocument) -> Iterator[str]:
    """The times are those of the whole job, so they are shown if it was deferred before this attempt only."""
    if attempt.deferred:
        is_only = not job.deferred and sum(bool(one.deferred) for one in job.attempts) == 1
        when = f"{times(job.deferred_count)}{_deferred_between(job)}" if is_only else "before"
        yield f"was deferred {when}: {past(attempt.deferred)}"


def _retried(attempt: AttemptDocument, following: AttemptDocument | None, retries: Sequence[LoggedAction]) -> JobStep:
    """The log has the time of a server's clock, attempts that of the broker's: they may differ by a little."""
    for one in retries:
        since_s = _seconds(attempt.ended_at, one.at)
        until_s = _seconds(one.at, following.started_at) if following is not None else 0.0
        if since_s is not None and until_s is not None and since_s > -CLOCKS_S and until_s > -CLOCKS_S:
            return JobStep("retried manually", one.at, (f"by {one.by}",))
    return JobStep("retried manually", None)


def _seconds(first: str | None, second: str | None) -> float | None:
    later, earlier = seconds_between(first, second), seconds_between(second, first)
    return later if later is not None or earlier is None else -earlier


def _wait(
    job: JobDocument, paused: Sequence[PastPause], before: str | None, at: str | None, number: int
) -> Iterator[str]:
    waited_s = seconds_between(before, at)
    if waited_s is None:
        return
    yield f"waited {duration(waited_s)}" if number == 1 else f"{duration(waited_s)} after attempt {number - 1}"
    during = [one for one in paused if seconds_between(before, one.end) and seconds_between(one.start, at)]
    for one in during[-PAUSES_SHOWN:]:
        yield f"queue {job.queue} was paused {_span(one, at)} by {one.by}{why(one.reason)}"
    if len(during) > PAUSES_SHOWN:
        yield f"and {times(len(during) - PAUSES_SHOWN)} earlier"


def _span(pause: PastPause, at: str | None) -> str:
    """From when until when; without the days if they are that of `at`, which the step shows."""
    start, end = moment(pause.start), moment(pause.end)
    if start[:10] == end[:10] == moment(at)[:10]:
        return f"from {start[11:19]} to {end[11:]}"
    return f"from {start} to {end}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _run(attempt: AttemptDocument) -> str:
    """The broker counts from the claim to the settlement, the worker what its handler took."""
    whole_s = seconds_between(attempt.started_at, attempt.ended_at)
    if attempt.outcome == RELEASED:
        return f"requeued after {duration(whole_s)}{why(attempt.reason)}"
    if whole_s is None or whole_s <= attempt.duration_s:
        return f"took {duration(attempt.duration_s)}: {attempt.outcome}"
    return f"took {duration(whole_s)}, {duration(attempt.duration_s)} of it in the handler: {attempt.outcome}"


def _current(job: JobDocument, paused: Sequence[PastPause], cancellations: Sequence[LoggedAction]) -> Iterator[JobStep]:
    """What the job does now, or how it ended."""
    last_ended = job.attempts[-1].ended_at if job.attempts else None
    before = last_ended or (job.created_at if not job.attempt_count else None)
    waited = _wait(job, paused, before, job.started_at, job.attempt_count + 1)
    if job.is_finished:
        if job.started_at and not job.attempts and job.status == "completed":
            yield JobStep("started", job.started_at, tuple(waited))
        by = (f"by {cancellations[-1].by}",) if cancellations and job.status == "cancelled" else ()
        if by and last_ended and last_ended > cancellations[-1].at:  # a worker had to stop it first
            yield JobStep("cancellation requested", cancellations[-1].at, by)
            by = ()
        yield JobStep("died" if job.status == "dead" else job.status, job.completed_at, by, job.status == "dead")
    elif job.status == "running":
        yield JobStep("started", job.started_at, (*waited, "running now"))
        if job.is_cancel_requested:
            by = (f"by {cancellations[-1].by}",) if cancellations else ()
            yield JobStep("cancellation requested", cancellations[-1].at if cancellations else None, by)
    elif job.deferred:
        count = f"deferred {times(job.deferred_count)} so far,{_deferred_between(job)}"
        yield JobStep("deferred, next try", job.scheduled_at, (job.deferred, count, what_then(job.deferred)))
    elif job.scheduled_at:
        yield JobStep("due", job.scheduled_at)
    elif before:
        yield JobStep("pending", None, ("since its last attempt ended" if last_ended else "since it was created",))
