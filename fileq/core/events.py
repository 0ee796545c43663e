"""The events of jobs: one Struct each, with its name, its level, its fields and one line of meaning (the docstring).

Those of files are in file_events.py, those of processes and connections in process_events.py.

`emit(event)` is the only way to report something; `emit_all(events)` reports several for the cost of little more than
one. Logs, metrics, tracing, the broker's `job:*` events and the tables in docs/events.md derive from these classes. A
field that is None does not apply and is left out of the log line. A field in `hidden` is for listeners only and never
reaches a log line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from msgspec import Struct

from fileq.core.claim import Buried, Claim
from fileq.core.job import Job, parse_time
from fileq.core.outcome import Cancelled, Failed, Released
from fileq.core.settlement import Settlement, Verb


class Event(Struct, frozen=True):
    """`level` is the level of the log line; `none` means that the event is for metrics only."""

    name: ClassVar[str]
    level: ClassVar[str] = "info"
    hidden: ClassVar[tuple[str, ...]] = ()


PATH_MAX = 4_096  # characters of a path in an event
TYPE_MAX = 100

Emit: TypeAlias = Callable[[Event], None]
EmitAll: TypeAlias = Callable[[Sequence[Event]], None]


def ignore(event: Event) -> None:
    """An Emit without listeners."""


def one_by_one(emit: Emit) -> EmitAll:
    """An EmitAll that passes each event to `emit`."""

    def emit_all(events: Sequence[Event]) -> None:
        for event in events:
            emit(event)

    return emit_all


# jobs


class JobEvent(Event, frozen=True):
    """`filepath` is the job's file and `type` its type; most jobs have one of them, bytes that are not a job neither.

    `trace_id` and `span_id` are those of the job, or with tracing those of the span that the event belongs to."""

    job_id: str
    filepath: str | None
    type: str | None
    trace_id: str
    span_id: str


class JobProduced(JobEvent, frozen=True):
    """A version of a file was enqueued."""

    name = "job.produced"
    hidden = ("job",)
    published_as: ClassVar[str] = "job:created"

    queue: str
    job: Job


class JobClaimed(JobEvent, frozen=True):
    """A slot claimed a job, which had been ready for `waited_ms`."""

    name = "job.claimed"
    level = "debug"
    hidden = ("job", "is_run")
    published_as: ClassVar[str] = "job:started"

    queue: str
    worker_id: str
    waited_ms: int | None
    job: Job | None
    is_run: bool = True  # False if it is given back at once, because the worker stops


class AttemptEnded(JobEvent, frozen=True):
    """How an attempt ended: `outcome` is the word for it in traces, `published_as` the broker's event ("" for none)."""

    outcome: ClassVar[str]
    is_error: ClassVar[bool] = False
    published_as: ClassVar[str] = ""

    queue: str
    worker_id: str | None
    duration_ms: int | None  # None if a reaper settled the attempt: it does not know
    error: str | None


class JobCompleted(AttemptEnded, frozen=True):
    """A job was completed. `is_superseded`: without running it, because a newer version of its file has its own job.
    `is_vanished`: without running it, because its file no longer exists."""

    name = "job.completed"
    outcome = "completed"
    published_as = "job:completed"

    is_superseded: bool | None = None
    is_vanished: bool | None = None


class JobFailed(AttemptEnded, frozen=True):
    """An attempt failed; the next one starts after `delay_ms`."""

    name = "job.failed"
    level = "warning"
    outcome = "failed"
    is_error = True
    published_as = "job:failed"

    delay_ms: int = 0


class JobDead(AttemptEnded, frozen=True):
    """A job became a dead letter. `is_failure`: its last attempt failed. `lost_by`: the slot a reaper took it from.
    `is_vanished`: its file no longer exists."""

    name = "job.dead"
    level = "error"
    outcome = "dead"
    is_error = True
    published_as = "job:dead"

    is_failure: bool | None = None
    lost_by: str | None = None
    is_vanished: bool | None = None


class JobRecovered(AttemptEnded, frozen=True):
    """The process that ran a job died; its worker, or a reaper (`lost_by`, `verb`), gave the job back. The error of a
    crash begins with `crashed: `, that of a lost worker with `its worker died`."""

    name = "job.recovered"
    level = "warning"
    outcome = "died"
    is_error = True
    published_as = "job:recovered"

    delay_ms: int | None = None
    verb: str | None = None
    lost_by: str | None = None


class JobReleased(AttemptEnded, frozen=True):
    """A job went back to the front of its queue: its worker stops, or had claimed it in advance and got no room for it.
    No failure and no recovery is counted."""

    name = "job.released"
    outcome = "released"


class JobCancelled(AttemptEnded, frozen=True):
    """A running job was cancelled."""

    name = "job.cancelled"
    outcome = "cancelled"
    published_as = "job:cancelled"


class JobDeferred(JobEvent, frozen=True):
    """A job cannot run yet and waits for `delay_ms`; nothing is counted. A worker reports the first job of a reason,
    and each job that waits for an earlier job of its file."""

    name = "job.deferred"
    published_as: ClassVar[str] = "job:deferred"

    queue: str
    worker_id: str
    reason: str
    delay_ms: int


class JobFenced(JobEvent, frozen=True):
    """A slot lost its job to another one, so its outcome does not count."""

    name = "job.fenced"
    level = "warning"
    outcome: ClassVar[str] = "fenced"

    worker_id: str


class ResultDropped(JobEvent, frozen=True):
    """The result of a handler was not JSON or too large; the job is completed without it."""

    name = "job.result_dropped"
    level = "warning"

    reason: str


class HandlerErrorIgnored(JobEvent, frozen=True):
    """A handler raised an error while it was stopped, because its worker stops (`outcome` is `released`) or its job was
    cancelled. It does not count as a failure. `exception` is the traceback."""

    name = "handler.error_ignored"
    level = "warning"

    worker_id: str
    outcome: str
    error: str
    exception: str


class OutputEvent(Event, frozen=True):
    """What a handler printed. All ids are missing for what a child process prints between two jobs."""

    job_id: str | None
    filepath: str | None
    type: str | None
    trace_id: str | None
    span_id: str | None
    worker_id: str | None


class HandlerPrinted(OutputEvent, frozen=True):
    """A handler printed a line (level info), or a record of Python's `logging` came from `logger` (its own level).
    Lines are cut at 4 KiB."""

    name = "handler.printed"
    hidden = ("level",)

    text: str
    level: str = "info"  # type: ignore[misc]  # the only event whose level differs from one to the next
    logger: str | None = None


class HandlerOutputSkipped(OutputEvent, frozen=True):
    """A handler printed more than 200 lines in a second; so many `lines` of them have no event."""

    name = "handler.output_skipped"
    level = "warning"

    lines: int


_BY_VERB: dict[Verb, type[AttemptEnded]] = {
    Verb.COMPLETE: JobCompleted,
    Verb.RETRY: JobFailed,
    Verb.BURY: JobDead,
    Verb.RELEASE: JobReleased,
    Verb.CANCEL: JobCancelled,
}


def published_name(settlement: Settlement) -> str:
    """The broker's name for the event of a settlement; "" if brokers do not publish it."""
    if settlement.verb is Verb.DEFER:
        return JobDeferred.published_as
    return _event_type_of(settlement).published_as


def event_name(settlement: Settlement) -> str:
    """The name of the event of a settlement, as hooks and webhooks know it."""
    return JobDeferred.name if settlement.verb is Verb.DEFER else _event_type_of(settlement).name


def _event_type_of(settlement: Settlement) -> type[AttemptEnded]:
    """The event of an attempt. A dead worker's job is recovered, unless it has died too often and is buried."""
    if settlement.died and settlement.verb is not Verb.BURY:
        return JobRecovered
    return _BY_VERB[settlement.verb]


def claimed(claim: Claim, *, is_run: bool = True) -> JobClaimed:
    return JobClaimed(*ids_of(claim), claim.queue, claim.slot, waited_ms(claim), claim.job, is_run)


def settled(settlement: Settlement) -> AttemptEnded | JobDeferred:
    """The event of a settlement that the broker has accepted, by the slot that held the claim. No slot held a job that
    died while it waited."""
    s, claim = settlement, settlement.claim
    if s.verb is Verb.DEFER:
        return JobDeferred(*ids_of(claim), claim.queue, claim.slot, s.reason, s.delay_ms)
    kind = _event_type_of(s)
    common = (*ids_of(claim), claim.queue, claim.slot or None, s.duration_ms, s.error or None)
    if kind is JobCompleted:
        return JobCompleted(*common, s.superseded or None, s.vanished or None)
    if kind is JobFailed:
        return JobFailed(*common, s.delay_ms)
    if kind is JobDead:
        return JobDead(*common, s.is_failure or None, is_vanished=s.vanished or None)
    if kind is JobRecovered:
        return JobRecovered(*common, s.delay_ms if s.verb is Verb.RETRY else None)
    return kind(*common)


def buried_unread(buried: Buried) -> tuple[JobClaimed, JobDead]:
    """The events of bytes that the broker buried when a slot was to claim them."""
    common = (buried.id, None, None, "", "", buried.queue, buried.slot)
    return JobClaimed(*common, None, None), JobDead(*common, 0, buried.error)


def reaped(settlement: Settlement) -> JobDead | JobRecovered:
    """The event of a settlement that a reaper made for a slot without a heartbeat."""
    claim = settlement.claim
    common = (*ids_of(claim), claim.queue, None, None, settlement.error or None)
    if settlement.verb is Verb.BURY:
        return JobDead(*common, lost_by=claim.slot)
    return JobRecovered(*common, verb=settlement.verb.value, lost_by=claim.slot)


def fenced(claim: Claim) -> JobFenced:
    return JobFenced(*ids_of(claim), claim.slot)


def result_dropped(claim: Claim, reason: str) -> ResultDropped:
    return ResultDropped(*ids_of(claim), reason)


def error_ignored(claim: Claim, outcome: Cancelled | Released, raised: Failed) -> HandlerErrorIgnored:
    word = JobReleased.outcome if isinstance(outcome, Released) else JobCancelled.outcome
    return HandlerErrorIgnored(*ids_of(claim), claim.slot, word, raised.error, raised.traceback)


def produced(job: Job, queue: str) -> JobProduced:
    return JobProduced(*_ids_of_job(job), queue, job)


OutputIds: TypeAlias = tuple[str | None, str | None, str | None, str | None, str | None, str | None]


def output_ids(job: Job | None, slot: str | None) -> OutputIds:
    """The fields of OutputEvent; `job` is None for bytes that are not a job."""
    return (*_ids_of_job(job), slot) if job is not None else (None, None, None, None, None, slot)


def waited_ms(claim: Claim) -> int | None:
    """From the moment the job was ready to its claim, by the clocks that wrote the two times.

    None after a failure or a recovery: such a job was ready when its backoff ended, and only its record knows when."""
    job = claim.job
    if job is None or job.retries or job.recoveries or not claim.claimed_ms:
        return None
    ready = parse_time(job.creation_time)
    if job.process_at and (due := parse_time(job.process_at)):
        # A job may be enqueued for a time that is over: it was ready when it was enqueued.
        ready = due if ready is None else max(ready, due)
    return max(0, claim.claimed_ms - round(ready.timestamp() * 1000)) if ready is not None else None


_Ids: TypeAlias = tuple[str, str | None, str | None, str, str]


def ids_of(claim: Claim) -> _Ids:
    """The fields of JobEvent."""
    return _ids_of_job(claim.job) if claim.job is not None else (claim.id, None, None, "", "")


def _ids_of_job(job: Job) -> _Ids:
    """Bounded: another program can push a job with a type of a megabyte."""
    type = job.type[:TYPE_MAX] if job.type is not None else None
    return job.id, job.filepath[:PATH_MAX] or None, type, job.trace_id, job.span_id
