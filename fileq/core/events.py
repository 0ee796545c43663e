"""The events: one Struct each, with its name, its level, its fields and one line of meaning (the docstring).

`emit(event)` is the only way to report something; `emit_all(events)` reports several for the cost of little more than
one. Logs, metrics, tracing, the broker's `job:*` events and the tables in docs/events.md derive from these classes. A
field that is None does not apply and is left out of the log line. A field in `hidden` is for listeners only and never
reaches a log line.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from msgspec import Struct, StructMeta

from fileq.core.job import Buried, Claim, Job, parse_time
from fileq.core.outcome import Cancelled, Failed, Released
from fileq.core.settlement import Settlement, Verb

EVENTS: dict[str, type[Event]] = {}  # by name


@dataclass_transform(frozen_default=True)
class EventMeta(StructMeta):
    """Takes what defines an event, its name and the like, as keywords of its class."""

    def __new__(
        meta,
        class_name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        *,
        name: str = "",
        level: str = "",
        hidden: tuple[str, ...] = (),
        published_as: str = "",
    ) -> Any:
        kind: Any = super().__new__(meta, class_name, bases, body, frozen=True)
        if name:
            kind.name, kind.hidden, kind.published_as = name, hidden, published_as
            EVENTS[name] = kind
        if level:
            kind.level = level
        return kind


class Event(Struct, metaclass=EventMeta):
    """`level` is the level of the log line; `none` means that the event is for metrics only. `published_as` is the
    broker's name for it; "" if brokers do not publish it."""

    name: ClassVar[str]
    level: ClassVar[str] = "info"
    hidden: ClassVar[tuple[str, ...]] = ()
    published_as: ClassVar[str] = ""


class PathEvent(Event):
    path: str


class ErrorEvent(Event):
    error: str


class ReasonEvent(Event):
    reason: str


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


def singly(emit_all: EmitAll) -> Emit:
    """An Emit that passes each event on alone."""
    return lambda event: emit_all((event,))


# jobs


class JobEvent(Event):
    """`filepath` is the job's file and `type` its type; most jobs have one of them, bytes that are not a job neither.
    `trace_id` and `span_id` are those of the job, or with tracing those of the span that the event belongs to."""

    job_id: str
    filepath: str | None
    type: str | None
    trace_id: str
    span_id: str


class JobProduced(JobEvent, name="job.produced", hidden=("job",), published_as="job:created"):
    """A version of a file was enqueued."""

    queue: str
    job: Job


class JobClaimed(
    JobEvent, name="job.claimed", level="debug", hidden=("job", "is_run", "token"), published_as="job:started"
):
    """A slot claimed a job, which had been ready for `waited_ms`."""

    queue: str
    worker_id: str
    waited_ms: int | None
    job: Job | None
    is_run: bool = True  # False if it is given back at once, because the worker stops
    token: int = 0  # of the claim


class AttemptEnded(JobEvent):
    """How an attempt ended: `outcome` is the word for it in traces."""

    outcome: ClassVar[str]
    is_error: ClassVar[bool] = False

    queue: str
    worker_id: str | None
    duration_ms: int | None  # None if a reaper settled the attempt: it does not know
    error: str | None


class JobCompleted(AttemptEnded, name="job.completed", published_as="job:completed"):
    """A job was completed. `is_superseded`: without running it, because a newer version of its file has its own job.
    `is_vanished`: without running it, because its file no longer exists."""

    outcome = "completed"

    is_superseded: bool | None = None
    is_vanished: bool | None = None


class JobFailed(AttemptEnded, name="job.failed", level="warning", published_as="job:failed"):
    """An attempt failed; the next one starts after `delay_ms`."""

    outcome = "failed"
    is_error = True

    delay_ms: int = 0


class JobDead(AttemptEnded, name="job.dead", level="error", published_as="job:dead"):
    """A job is dead: it went to the dead-letter queue. `is_failure`: its last attempt failed. `lost_by`: the slot a
    reaper took it from. `is_vanished`: its file no longer exists."""

    outcome = "dead"
    is_error = True

    is_failure: bool | None = None
    lost_by: str | None = None
    is_vanished: bool | None = None


class JobRecovered(AttemptEnded, name="job.recovered", level="warning", published_as="job:recovered"):
    """The process that ran a job died; its worker, or a reaper (`lost_by`, `verb`), requeued the job. The error of a
    crash begins with `crashed: `, that of a lost worker with `its worker died`."""

    outcome = "died"
    is_error = True

    delay_ms: int | None = None
    verb: str | None = None
    lost_by: str | None = None


class JobReleased(AttemptEnded, name="job.released"):
    """A job went back to the front of its queue, because its worker stops or prefetched it without a free slot. Neither
    a failure nor a recovery is counted."""

    outcome = "released"


class JobCancelled(AttemptEnded, name="job.cancelled", published_as="job:cancelled"):
    """A running job was cancelled."""

    outcome = "cancelled"


class JobDeferred(JobEvent, name="job.deferred", published_as="job:deferred"):
    """A job cannot run yet; it is tried again after `delay_ms`, and no attempt is counted. Logged for the first job of
    a reason, and for each job that has to wait for an earlier job of its file."""

    queue: str
    worker_id: str
    reason: str
    delay_ms: int


class JobFenced(JobEvent, name="job.fenced", level="warning"):
    """A slot had lost its job to another one, so its outcome was rejected."""

    outcome: ClassVar[str] = "fenced"

    worker_id: str


class ResultDropped(JobEvent, name="job.result_dropped", level="warning"):
    """The result of a handler was not JSON or too large; the job is completed without it."""

    reason: str


class HandlerErrorIgnored(JobEvent, name="handler.error_ignored", level="warning"):
    """A handler raised an error while it was being stopped, because its worker stops (`outcome` is `released`) or its
    job was cancelled. It does not count as a failure. `exception` is the traceback."""

    worker_id: str
    outcome: str
    error: str
    exception: str


class OutputEvent(Event):
    """What a handler printed. All ids are missing for what a child process prints between two jobs."""

    job_id: str | None
    filepath: str | None
    type: str | None
    trace_id: str | None
    span_id: str | None
    worker_id: str | None


class HandlerPrinted(OutputEvent, name="handler.printed", hidden=("level",)):
    """A handler printed a line (level info), or a record of Python's `logging` came from `logger` (its own level).
    Lines are cut at 4 KiB."""

    text: str
    level: str = "info"  # type: ignore[misc]  # the only event whose level differs from one to the next
    logger: str | None = None


class HandlerOutputSkipped(OutputEvent, name="handler.output_skipped", level="warning"):
    """A handler printed more than 200 lines in a second; `lines` of them were dropped."""

    lines: int


_BY_VERB: dict[Verb, type[AttemptEnded | JobDeferred]] = {
    Verb.COMPLETE: JobCompleted,
    Verb.RETRY: JobFailed,
    Verb.BURY: JobDead,
    Verb.RELEASE: JobReleased,
    Verb.CANCEL: JobCancelled,
    Verb.DEFER: JobDeferred,
}


def event_type(settlement: Settlement) -> type[AttemptEnded | JobDeferred]:
    """The event of a settlement. A dead worker's job is recovered, unless it has died too often and is buried."""
    if settlement.died and settlement.verb is not Verb.BURY:
        return JobRecovered
    return _BY_VERB[settlement.verb]


def claimed(claim: Claim, *, is_run: bool = True) -> JobClaimed:
    return JobClaimed(*ids_of(claim), claim.queue, claim.slot, waited_ms(claim), claim.job, is_run, claim.token)


def settled(settlement: Settlement) -> AttemptEnded | JobDeferred:
    """The event of a settlement that the broker has accepted, by the slot that held the claim. No slot held a job that
    died while it waited."""
    s, claim, kind = settlement, settlement.claim, event_type(settlement)
    if kind is JobDeferred:
        return JobDeferred(*ids_of(claim), claim.queue, claim.slot, s.reason, s.delay_ms)
    common = (*ids_of(claim), claim.queue, claim.slot or None, s.duration_ms, s.error or None)
    if kind is JobCompleted:
        return JobCompleted(*common, s.superseded or None, s.vanished or None)
    if kind is JobFailed:
        return JobFailed(*common, s.delay_ms)
    if kind is JobDead:
        return JobDead(*common, s.is_failure or None, is_vanished=s.vanished or None)
    if kind is JobRecovered:
        return JobRecovered(*common, s.delay_ms if s.verb is Verb.RETRY else None)
    if kind is JobReleased:
        return JobReleased(*common)
    return JobCancelled(*common)


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
    """From the moment the job was ready to its claim, by the clocks that wrote the two times. None after a failure or a
    recovery: such a job was ready when its backoff ended, and only its record knows when."""
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


# batches and deliveries


class BatchEvent(Event):
    """`batch` is the name of a batch that has one."""

    batch_id: str
    batch: str | None


class BatchFinished(BatchEvent, name="batch.finished", published_as="batch:finished"):
    """A batch finished: it is sealed, and all its members have ended. The counts are missing if the broker was
    unreachable. Logged, with hooks, by the worker that settled the last job, or cancelled the last ones after a
    member had died; only published if the batch was sealed after that, as with most deliveries, or if a command or a
    reaper ended the last job."""

    total: int | None = None
    completed: int | None = None
    dead: int | None = None
    cancelled: int | None = None
    deleted: int | None = None


class BatchCancelled(BatchEvent, name="batch.cancelled", level="warning"):
    """A worker cancelled a batch, because nothing was added to it for 24 hours or its parent was cancelled
    (`reason`)."""

    reason: str


class BatchReconciled(BatchEvent, name="batch.reconciled", level="warning"):
    """A worker counted members that had ended uncounted (`counted`), because the broker lost data."""

    counted: int


class DeliveryEvent(Event):
    directory: str
    batch_id: str


class DeliveryOpened(DeliveryEvent, name="delivery.opened"):
    """The first file of a delivery, or its marker or manifest, was found. Its files become members of this batch."""


class DeliverySealed(DeliveryEvent, name="delivery.sealed"):
    """A delivery is closed to new files. `problems` counts files that are missing or differ from the manifest; with
    `is_incomplete` its deadline passed first."""

    files: int
    problems: int
    is_incomplete: bool


class DeliveryFinished(DeliveryEvent, name="delivery.finished"):
    """All jobs of a delivery have ended. `failed`: how many were not completed."""

    total: int
    failed: int


class DeliveryUnreadable(DeliveryEvent, name="delivery.unreadable", level="warning"):
    """The manifest of a delivery, or its directory, can't be read. Logged once; it is retried until the deadline."""

    error: str


class DeliveryFailed(DeliveryEvent, name="delivery.failed", level="error", hidden=("exception",)):
    """An error stopped one delivery. Logged once; the delivery is retried, and the others continue."""

    error: str
    exception: BaseException


# what users add to jobs: follow-ups, hooks and webhooks


class JobFollowed(JobEvent, name="job.followed", level="debug"):
    """A job ended: `follow_ups` jobs were enqueued in the same step, skipped duplicates included, and `outputs` files
    are in its record."""

    queue: str
    follow_ups: int
    outputs: int


class HookFailed(Event, name="hook.failed", level="warning"):
    """A hook raised an error; its job is not affected. Logged at most once a minute for each hook; `failures` counts
    those since the last line."""

    hook: str
    event_name: str
    error: str
    failures: int


class HookEventsDropped(Event, name="hook.events_dropped", level="warning"):
    """Hooks are too slow, or one hangs: `count` events were dropped. Logged at most once a minute."""

    count: int
    hook: str | None  # the one that was running


class BeforeEnqueueFailed(PathEvent, name="producer.before_enqueue_failed", level="error"):
    """A function with `@fileq.before_enqueue` raised an error. The file is not enqueued; the next scan finds it again.
    Logged at most once a minute; the metric of skipped files (`veto_failed`) counts all."""

    error: str


class WebhookDelivered(Event, name="webhook.delivered", level="debug"):
    """A receiver accepted a delivery (`job_id`) with this `status`."""

    webhook: str
    job_id: str
    event_name: str
    status: int
    duration_ms: int


class WebhookFailed(Event, name="webhook.failed", level="debug"):
    """An attempt of a delivery (`job_id`) failed; `status` is missing if there was no answer. `job.failed` or
    `job.dead` of the delivery says what happens next."""

    webhook: str
    job_id: str
    event_name: str
    status: int | None
    error: str
    duration_ms: int


class WebhookDisabled(Event, name="webhook.disabled", level="error"):
    """A webhook was disabled, because its receiver answered 410 or failed for too long. `fileq webhook enable` enables
    it again."""

    webhook: str
    reason: str


class WebhooksInvalid(Event, name="webhook.invalid", level="error"):
    """Some webhook definitions are invalid; the others are in effect. Logged when `problems` change."""

    problems: list[str]


def followed(settlement: Settlement) -> JobFollowed:
    claim = settlement.claim
    return JobFollowed(*ids_of(claim), claim.queue, len(settlement.follow_ups), len(settlement.outputs))


# files and the producer


class SkipReason(enum.StrEnum):
    """Why a producer saw a file or directory and did not enqueue it."""

    EXCLUDED = "excluded"
    SYMLINK = "symlink"
    OUTSIDE = "outside"
    LOOP = "loop"
    DEEP = "deep"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    VANISHED = "vanished"
    CHANGING = "changing"
    UNMARKED = "unmarked"
    OLD_MARKER = "old_marker"
    VETOED = "vetoed"
    VETO_FAILED = "veto_failed"


class FileSkipped(Event, name="file.skipped", level="warning"):
    """A file or directory was skipped: it can't be read, a link leads outside `scan_dir`, in a loop or from one linked
    directory to another, a directory is nested too deeply, or a marker is older than its file. `action`, for an
    unreadable directory: the next scan retries it."""

    reason: SkipReason
    path: str
    action: str | None = None


class FileKept(PathEvent, name="file.kept", level="warning"):
    """A file was not moved or deleted as `worker.after` says."""

    wanted: str
    reason: str


class SkippedFilesCounted(Event, name="producer.files_skipped", level="none"):
    """How many files one turn of the producer skipped, by reason."""

    counts: Mapping[SkipReason, int]


class ScanFinished(Event, name="scan.finished", level="debug"):
    """A scan of the whole `scan_dir` ended. `is_complete`: without errors."""

    seconds: float
    is_complete: bool


class ScanDirLost(PathEvent, name="scan_dir.lost", level="warning"):
    """`scan_dir` is missing or cannot be read."""

    error: str


class ScanDirRestored(PathEvent, name="scan_dir.restored"):
    """`scan_dir` is back."""


class ScanDirReplaced(PathEvent, name="scan_dir.replaced"):
    """`scan_dir` is a different directory now; all of it is scanned."""


class WatchEventsLost(Event, name="producer.events_lost", level="warning"):
    """The kernel dropped file-system events; all of `scan_dir` is scanned."""

    action: str


class WatchFailed(ErrorEvent, name="producer.watch_failed", level="warning"):
    """Directories cannot be watched; they are polled instead."""

    action: str


class MarkersKept(PathEvent, name="producer.markers_kept", level="warning"):
    """A marker of `producer.ready_suffix` could not be removed after its file was enqueued. It does not count for the
    next file of that name. Reported once, for the first such marker."""

    error: str


class InodesNotCompared(PathEvent, name="producer.inodes_not_compared"):
    """A file system has no stable inode numbers, so a file on it is a new version only if its size or modification time
    changes. Logged once for each type of file system."""

    filesystem: str
    identity: str


# processes, threads and connections


class BrokerOpened(Event, name="broker.opened"):
    """At start: the broker, where it is, and the setting that chose it."""

    broker: str
    where: str
    chosen: str


class DatabaseCreated(ReasonEvent, name="database.created", level="warning"):
    """A producer was probably started in the wrong directory: it created a new database and enqueues into that."""


class BrokerUnsafe(Event, name="broker.unsafe", level="warning"):
    """The broker may lose data, or a check of `fileq doctor` failed."""

    check: str
    reason: str
    action: str


class BrokerLost(ErrorEvent, name="broker.lost", level="warning"):
    """The broker is unreachable. Logged once per outage."""


class BrokerRestored(Event, name="broker.restored"):
    """The broker answers again after this many seconds."""

    seconds: float


class BrokerRefused(ErrorEvent, name="broker.refused", level="error"):
    """The broker answers but refuses the worker's calls; an operator has to fix it."""


class ConfigReloaded(Event, name="config.reloaded"):
    """After SIGHUP: `handlers` were imported again, `changed` is in use now, `needs_restart` is not. A process without
    a worker has no `routes` and `handlers`."""

    changed: list[str]
    needs_restart: list[str]
    routes: int | None
    handlers: list[str] | None


class ConfigRefused(Event, name="config.refused", level="error"):
    """After SIGHUP: the new configuration or its handlers have errors, or would drop a type that the worker serves.
    Nothing was changed."""

    problems: list[str]
    reason: str


class BrokerDataRemoved(ErrorEvent, name="broker.removed", level="error"):
    """The database file was deleted or replaced while in use, and the process ends with exit code 1. Or Redis lost
    jobs, for example in a crash, and the process continues."""


class BreakerChanged(Event):
    """The breaker of a route changed its state. `error` is the last failure, `failure_share` counts those in the window
    when it opened, `next_probe_s` is the time until one job is tried."""

    was: str
    route: str = ""
    error: str | None = None
    failure_share: float | None = None
    next_probe_s: float | None = None


class BreakerOpened(BreakerChanged, name="breaker.opened", level="warning"):
    """Too many attempts of a route failed: its jobs are deferred, the others run."""


class BreakerHalfOpened(BreakerChanged, name="breaker.half_opened"):
    """The cooldown is over, and the next job of the route is the probe; or an operator ran one early."""


class BreakerClosed(BreakerChanged, name="breaker.closed"):
    """The probe succeeded, an operator reset the breaker, or the route had no jobs for `circuit_breaker.window`: its
    jobs run again."""


class RootLost(PathEvent, name="root.lost", level="warning"):
    """A root of the files is missing, not accessible or does not answer: its file jobs are deferred."""

    reason: str
    action: str


class RootRestored(PathEvent, name="root.restored"):
    """A root of the files is back: its file jobs run again."""


class SlotReplaced(Event, name="slot.replaced", level="warning"):
    """The broker no longer knows the slot `lost`; it continues as `worker_id`."""

    lost: str
    worker_id: str


class VariableIgnored(Event, name="variable.ignored", level="warning"):
    """An environment variable looks like a misspelt setting. It has no effect."""

    variable: str
    action: str


class HandlersUnset(Event, name="handlers.unset", level="warning"):
    """No handler is configured, so files are only checksummed."""

    action: str


class HandlersWarned(ReasonEvent, name="handlers.warned", level="warning"):
    """The configuration of a handler is probably a mistake."""


class RoleStarted(Event, name="role.started"):
    """All services are running. `directory` is `scan_dir`; `routes` counts a worker's routes, and `handlers` lists
    their handlers."""

    directory: str
    broker: str
    routes: int | None
    handlers: list[str] | None
    services: list[str]


class RoleStopping(Event, name="role.stopping"):
    """The role stops because of `signal`, for example SIGTERM; without it, because of a fatal error."""

    signal: str | None


class RoleStopped(Event, name="role.stopped"):
    """All services have ended."""


class DrainStarted(Event, name="worker.drain_started"):
    """The worker no longer claims; running jobs may finish."""

    running: int
    action: str


class WorkerFailed(ErrorEvent, name="worker.failed", level="error", hidden=("exception",)):
    """A bug in fileq ended the worker's loop; the process exits with code 1."""

    exception: BaseException


class LoopFailed(Event, name="loop.failed", level="error", hidden=("exception",)):
    """A bug in fileq: a turn of this loop raised an unexpected error. The loop continues."""

    loop: str
    error: str
    exception: BaseException


class ChildReplaced(ReasonEvent, name="child.replaced", level="debug"):
    """A job left its child process in a state that can't be restored; the next job gets another child."""


class ChildStartFailed(ErrorEvent, name="child.start_failed", level="error"):
    """A child process could not be started; fileq retries."""


class ForkServerDied(Event, name="forkserver.died", level="error"):
    """The process that starts children died; a new one is started."""

    cause: str


class ForkServerFailed(Event, name="forkserver.failed", level="error"):
    """The process that starts children could not be restarted; fileq retries."""

    problems: list[str]


class ForkServerStarted(Event, name="forkserver.started"):
    """The process that starts children runs again."""


class ProcessAbandoned(Event, name="process.abandoned", level="warning"):
    """A process that a handler started cannot be killed (it hangs in the kernel) and outlives the worker."""


class ThreadAbandoned(Event, name="thread.abandoned", level="warning"):
    """A handler in a thread did not stop; a new thread replaces its thread."""

    worker_id: str
    reason: str
    job_id: str | None = None
    filepath: str | None = None
    type: str | None = None


class HttpOpened(Event, name="http.opened"):
    """Where `/metrics`, `/healthz` and `/readyz` are served."""

    bind: str
    port: int


class AcceptStopped(Event, name="accept.stopped", level="warning"):
    """A port can't accept clients, because descriptors or memory ran out. fileq keeps retrying."""

    port: int
    reason: str


class AcceptResumed(Event, name="accept.resumed"):
    """The port accepts clients again."""

    port: int


class HttpPortTaken(Event, name="http.port_taken", level="warning"):
    """The default port is in use, so a free one was chosen."""

    wanted: int
    port: int


class CollectorLost(ErrorEvent, name="collector.lost", level="warning"):
    """Spans cannot be sent to the collector. Logged once per outage."""

    action: str


class CollectorRestored(Event, name="collector.restored"):
    """The collector accepts spans again; `dropped` spans were lost."""

    seconds: float
    dropped: int


# schedules


class ScheduleEvent(Event):
    schedule: str


class ScheduleFired(ScheduleEvent, name="schedule.fired"):
    """A schedule fired: its job was enqueued, `late_ms` after its time."""

    job_id: str
    scheduled_for: str
    late_ms: int


class ScheduleMissed(ScheduleEvent, name="schedule.missed", level="warning"):
    """A schedule missed `count` times, the latest at `last`: no worker was running, or the previous job had not ended
    (`reason`)."""

    count: int
    last: str
    reason: str


class ScheduleBroken(ScheduleEvent, name="schedule.broken", level="error"):
    """This worker can't fire a schedule, for example because it does not have the queue. Logged once; other workers may
    fire it, and other schedules are not affected."""

    error: str


class ScheduleRestored(ScheduleEvent, name="schedule.restored"):
    """This worker can fire the schedule again, or it was removed."""


class ScheduleDefined(ScheduleEvent, name="schedule.defined"):
    """At start or after SIGHUP: a schedule in the configuration is new or has changed."""

    cron: str
    timezone: str


class ScheduleUnclaimed(ScheduleEvent, name="schedule.unclaimed", level="warning"):
    """A schedule from a configuration is missing in this worker's. It is removed after `seconds`, unless a running
    worker has it."""

    seconds: float


class ScheduleRemoved(ScheduleEvent, name="schedule.removed"):
    """A schedule was removed, because no running worker has it in its configuration."""


# the REST server


class ServerOpened(Event, name="server.opened"):
    """The REST server listens. `url` is its address as seen from this machine."""

    url: str
    is_read_only: bool


class ServerWarned(ReasonEvent, name="server.warned", level="warning"):
    """The web server reported a problem, such as a malformed request."""


class UploadsRemoved(Event, name="uploads.removed"):
    """Incomplete uploads of a killed server were removed from `server.upload_dir`."""

    count: int
    directory: str


class RequestAudited(Event, name="request.audited"):
    """A request that can change something: who sent it, what it did, how many objects it changed, and the status of the
    response."""

    who: str
    caller_id: str
    action: str
    target: str
    count: int
    result: int
    request_id: str


class LoginsFailed(Event, name="logins.failed", level="warning"):
    """Logins failed with wrong passwords, keys or one-time links: how many, and from how many addresses. At most one
    event in ten minutes; `address` and `how` (basic, key or link) are those of the last one."""

    failures: int
    addresses: int
    address: str
    how: str


class RequestFailed(Event, name="request.failed", level="error", hidden=("exception",)):
    """A defect of fileq, or of a before_enqueue function: a request was answered with status 500."""

    action: str
    request_id: str
    error: str
    exception: BaseException


class OperationStarted(Event, name="operation.started"):
    """A server started working on an operation. `is_resumed`: it was begun by another server or before a restart, and
    `done` jobs are already changed."""

    id: str
    action: str
    matched: int
    done: int
    is_resumed: bool


class OperationEnded(Event, name="operation.ended"):
    """An operation has ended. `state` is completed, stopped or failed. `refused` jobs could not be changed."""

    id: str
    action: str
    state: str
    done: int
    refused: int
    error: str
