"""What the outside sees: one document for a job, one for a worker and one for a batch, each made in one function.

They are what `--json`, the API, the client, the console and webhooks show. The descriptions of their fields are the
documentation: of `--json` (docs/cli.md) and of the API (docs/openapi.json). Inside fileq a job is a core.job.Job with
its brokers.types.Record. Does no I/O.

Clients decode those of jobs and batches. A server of another version may leave out a field or add one, so each field
but the id has a default."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import asdict, replace

from fileq.brokers.types import Attempt, OpenBreaker, Record, WorkerView
from fileq.core.batch import Batch, BatchFacts, BatchState, CallbackKind, callback_id, facts_of
from fileq.core.documented import means
from fileq.core.errors import BatchError, Undecodable
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Job, State, decode, decode_or_none, stamp
from fileq.core.public_name import public
from fileq.core.webhook import DELIVERY_TYPE

OUTLINE_BYTES = 4 << 10  # of a field of a list
UNKNOWN = "unknown"  # the status of a job without a record

# RFC 3339 in UTC; None for what has not happened
Time: TypeAlias = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
_SILENT_SHARE = 0.4  # a heartbeat is renewed after a third of its time, under load a moment later
FAILURES_SHOWN = 10
RELEASED = "released"  # the outcome of an attempt that a worker gave back


class AttemptDocument(Struct, frozen=True):
    """One attempt that has ended."""

    number: Annotated[int, means("counts from 1, across manual retries")]
    started_at: Time
    ended_at: Time
    duration_s: Annotated[float, means("of the handler; if its worker died, until that was detected")]
    worker_id: Annotated[str, means("the worker that ran it; empty if none did")]
    outcome: Annotated[str, means("completed, failed, died, released, cancelled, …")]
    error: Annotated[str, means("empty if there was none")]
    traceback: str = ""
    output: Annotated[str, means("the end of the handler's output, if the attempt failed")] = ""
    deferred: Annotated[str, means("why the job was last deferred before this attempt")] = ""
    is_fatal: Annotated[bool, means("the job died of it")] = False
    reason: Annotated[str, means("why it was released")] = ""


class OutputDocument(Struct, frozen=True):
    """A file that a job made, as it was when the job ended."""

    path: str
    size: int
    signature: str


@public()
class JobDocument(Struct, frozen=True):
    """One job. Times are RFC 3339 in UTC; null for what has not happened."""

    id: Annotated[str, means("`raw-<sha1>` for bytes that are not a job")]
    type: Annotated[str | None, means("null for a file's job")] = None
    status: Annotated[str, means("pending, scheduled, running, retrying, deferred, completed, dead or cancelled")] = (
        UNKNOWN
    )
    priority: Annotated[str, means("as in the job's own JSON")] = ""
    retry_count: Annotated[int, means("failed attempts that count against max_retries")] = 0
    result: Annotated[Any, means("what the handler returned")] = None
    created_at: Time = None
    started_at: Annotated[Time, means("start of the last attempt")] = None
    completed_at: Annotated[Time, means("when it was completed, died or was cancelled")] = None
    worker_id: Annotated[str | None, means("the worker that runs or last ran it")] = None
    queue: Annotated[str, means("the queue it is in, or was last in")] = ""
    path: Annotated[
        str | None,
        means(
            "the file on the producer, escaped where it is not UTF-8; null for a job without a file, or if"
            " the server hides file names"
        ),
    ] = None
    payload: Any = None
    error: Annotated[str | None, means("error of the last failed attempt, or why it is dead or not a job")] = None
    scheduled_at: Annotated[Time, means("when it is due")] = None
    deadline: Annotated[str | None, means("the job is not started after this time")] = None
    max_retries: Annotated[int | None, means("null if its handler decides")] = None
    timeout_s: Annotated[float | None, means("per attempt; null if its handler decides")] = None
    unique_key: str | None = None
    batch_id: Annotated[str | None, means("its batch, or the one that its own JSON names")] = None
    batch_facts: Annotated[BatchFacts | None, means("of a callback: its batch when it was enqueued")] = None
    parent_id: Annotated[str | None, means("the job that enqueued this one when it ended")] = None
    tags: dict[str, str] = {}
    is_finished: Annotated[bool, means("completed, dead or cancelled")] = False
    is_cancel_requested: Annotated[bool, means("its worker was asked to stop it")] = False
    deferred: Annotated[str | None, means("why a deferred job cannot run yet")] = None
    deferred_count: Annotated[int, means("how often it was deferred")] = 0
    first_deferred_at: Annotated[Time, means("null in lists")] = None
    last_deferred_at: Annotated[Time, means("null in lists")] = None
    waits_for: Annotated[tuple[str, ...], means("why it is not running, such as a paused queue; empty in lists")] = ()
    attempt_count: Annotated[int, means("ended attempts and refusals; `attempts` may lack the first ones")] = 0
    attempts: tuple[AttemptDocument, ...] = ()
    follow_ups: Annotated[tuple[str, ...], means("ids of the jobs that it enqueued when it ended")] = ()
    outputs: Annotated[tuple[OutputDocument, ...], means("files that it created")] = ()
    filesize: Annotated[int, means("in bytes; for bytes that are not a job, their number")] = 0
    trace_id: Annotated[str, means("empty if not traced")] = ""
    span_id: str = ""
    fingerprint: Annotated[str | None, means("of a dead job; equal for jobs that died of the same cause")] = None
    recoveries: Annotated[int, means("how often its worker died while running it")] = 0
    signature: Annotated[str | None, means("version of the file: size-mtime in ns, and -i with a known inode")] = None
    path_b64: Annotated[str | None, means("the bytes of a path that is not UTF-8, in base64")] = None
    moved_from: Annotated[str | None, means("original path of a file that was moved before a retry")] = None
    moved_to: Annotated[str | None, means("where worker.after moved the file after the job had ended")] = None
    other_fields: Annotated[dict[str, Any], means("fields of its own JSON that fileq does not know")] = {}
    raw_b64: Annotated[str | None, means("base64 of bytes that are not a job; empty if too long; null for a job")] = (
        None
    )
    left_out: Annotated[tuple[str, ...], means("fields over 4 KiB, omitted in lists; `show` has them")] = ()

    @property
    def is_job(self) -> bool:
        """False for bytes that are not a job."""
        return self.raw_b64 is None

    @property
    def run_count(self) -> int:
        """How often its handler ran: `attempt_count` without the attempts that were refused before they began."""
        return self.attempt_count - sum(attempt.outcome in ("refused", "vanished") for attempt in self.attempts)


class EnqueuedDocument(JobDocument, frozen=True):
    """A job that a request enqueued, or that was there already."""

    warning: Annotated[str | None, means("that no running worker takes it; null if one does, or if unknown")] = None


def enqueued_document(record: Record, warning: str) -> EnqueuedDocument:
    return EnqueuedDocument(**asdict(job_document(record)), warning=warning or None)


def job_document(record: Record, waits_for: tuple[str, ...] = (), *, is_outline: bool = False) -> JobDocument:
    """`waits_for` is what keeps a waiting job from running. An outline has none of what is long, and decodes none of
    it."""
    left_out: tuple[str, ...] = ()
    try:
        job, defect = decode(record.raw), ""
    except Undecodable as undecodable:
        job, defect = None, str(undecodable)
    error = record.error or defect if job is None else job.error or record.error
    cause = fingerprint_of(job, record, error) if record.state is State.DEAD else None
    if is_outline:
        job, record, left_out = _outline(job, record)
    if job is not None:
        own = _fields_of(job)
    else:
        raw = b"" if "raw_b64" in left_out else record.raw
        own = {"filesize": len(record.raw), "raw_b64": base64.b64encode(raw).decode()}
    has_run = record.state is State.RUNNING or record.attempt_count > 0  # a claim that was deferred is no run
    first = record.attempt_count - len(record.attempts) + 1  # the number of the first attempt that it has
    return JobDocument(
        id=job.id if job is not None else record.id,
        status=record.state.value,
        priority=(job.priority if job is not None else "") or record.queue,
        result=_value(record.result) if record.result else None,
        created_at=stamp(record.created_ms),
        started_at=stamp(record.started_ms) if has_run else None,
        completed_at=stamp(record.ended_ms),
        worker_id=(record.slot or None) if has_run else None,
        queue=record.queue or (job.priority if job is not None else ""),
        # A completed job has none, although an earlier attempt may have failed.
        error=(error or None) if record.state is not State.COMPLETED else None,
        scheduled_at=stamp(record.due_ms),
        batch_id=record.batch or (job.batch_id if job is not None else None),
        is_finished=not record.state.is_unfinished,
        deferred=(record.deferred or None) if record.state is State.DEFERRED else None,
        first_deferred_at=stamp(record.deferrals_ms[0]),
        last_deferred_at=stamp(record.deferrals_ms[1]),
        waits_for=waits_for,
        attempts=tuple(_attempt(n, attempt) for n, attempt in enumerate(record.attempts, first)),
        outputs=tuple(OutputDocument(_shown(one.path), one.size, one.signature) for one in record.outputs),
        fingerprint=cause,
        moved_to=_shown(record.moved_to) or None,
        left_out=left_out,
        **_same(record, "is_cancel_requested", "deferred_count", "attempt_count", "follow_ups"),
        **own,
    )


def _fields_of(job: Job) -> dict[str, Any]:
    """What a job says of itself."""
    return {
        **_same(job, "type", "max_retries", "unique_key", "deadline", "parent_id", "filesize", "trace_id", "span_id"),
        **_same(job, "recoveries", "moved_from"),
        "retry_count": job.retries,
        "path": job.filepath or None,
        "payload": _value(job.payload) if job.payload is not UNSET else None,
        "timeout_s": job.timeout,
        "batch_facts": facts_of(job),
        "tags": job.tag_values,
        "signature": job.version,
        "path_b64": job.filepath_b64,
        "other_fields": {name: _value(value) for name, value in job.unknown.items()} if job.unknown else {},
    }


def _same(source: object, *names: str) -> dict[str, Any]:
    """The fields that a document has under the name that they have in fileq."""
    return {name: getattr(source, name) for name in names}


def job_without_record(id: str, status: str = UNKNOWN, error: str = "", attempt_count: int = 0) -> JobDocument:
    """Of a job that never existed, or whose record is gone."""
    return JobDocument(id, status=status, error=error or None, attempt_count=attempt_count, is_finished=True)


def _outline(job: Job | None, record: Record) -> tuple[Job | None, Record, tuple[str, ...]]:
    """Without what is long, and the names of what was left out."""
    left_out, short = list[str](), dict[str, Any]()
    if len(record.raw) > OUTLINE_BYTES:
        if job is None:
            left_out.append("raw_b64")
        elif job.payload is not UNSET and len(bytes(job.payload)) > OUTLINE_BYTES:
            left_out.append("payload")
            job = job.but(payload=UNSET)
        if job is not None and job.unknown is not UNSET:
            left_out.append("other_fields")
            job = job.but(unknown=UNSET)
    if len(record.result) > OUTLINE_BYTES:
        short["result"] = b""
    if sum(len(one.error) + len(one.traceback) + len(one.output) for one in record.attempts) > OUTLINE_BYTES:
        short["attempts"] = ()
    if sum(map(len, record.follow_ups)) > OUTLINE_BYTES:
        short["follow_ups"] = ()
    if sum(len(one.path) for one in record.outputs) > OUTLINE_BYTES:
        short["outputs"] = ()
    return job, replace(record, **short), (*left_out, *short)


def fingerprint_of(job: Job | None, record: Record | None, error: str) -> str:
    """The fingerprint of a dead job. Of one without a record, as another program may push it, it is computed here; if
    that is the job of a file, without the name of the route, which is unknown."""
    if record is not None and record.fingerprint:
        return record.fingerprint
    return fingerprint(error, job.type or "", "", job.filepath) if job is not None else fingerprint(error)


def _attempt(number: int, attempt: Attempt) -> AttemptDocument:
    return AttemptDocument(
        number=number,
        started_at=stamp(attempt.started_ms),
        ended_at=stamp(attempt.ended_ms),
        duration_s=_duration_s(attempt),
        reason=_why_released(attempt) if attempt.outcome == RELEASED else "",
        worker_id=attempt.slot,
        **_same(attempt, "outcome", "error", "traceback", "output", "deferred", "is_fatal"),
    )


def _why_released(attempt: Attempt) -> str:
    if attempt.duration_ms is None:
        return "not started: its worker was stopping, or had claimed it in advance"
    return "interrupted: its worker was stopping"


def _duration_s(attempt: Attempt) -> float:
    """As the worker measured it. A reaper left no duration: then from the claim to the settlement, by the broker."""
    if attempt.duration_ms is not None:
        return attempt.duration_ms / 1000
    return max(0, attempt.ended_ms - attempt.started_ms) / 1000 if attempt.started_ms else 0.0


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _value(json: bytes | Raw) -> Any:
    """The value of this JSON. One that Python can't hold, such as the number 1e999, is shown as its text."""
    try:
        return msgspec.json.decode(json)
    except (msgspec.DecodeError, ValueError):
        return bytes(json).decode(errors="backslashreplace")


class HeldJobDocument(Struct, frozen=True):
    """A job that a slot of a worker holds."""

    worker_id: Annotated[str, means("the slot")]
    id: Annotated[str, means("empty for bytes that are not a job")]
    path: str | None
    type: str | None
    running_s: float | None


class BreakerDocument(Struct, frozen=True):
    """The breaker of a route that is open or half-open."""

    route: str
    state: str
    error: str
    failure_share: float
    next_probe_at: Annotated[Time, means("next try; null while probing with one job at a time")]
    deferred: Annotated[int, means("jobs that this process deferred because of it")] = 0


class WorkerDocument(Struct, frozen=True):
    """One worker process with its slots. After a reload its old worker is listed beside the new one until its last job
    has ended: it `is_draining`, as a worker that stops, and claims nothing."""

    host: str
    pid: int
    version: str
    started_at: Time
    queues: Annotated[tuple[str, ...], means("the queues it claims from")]
    breaker: Annotated[str, means("the worst state of the breakers of all routes")]
    breakers: Annotated[tuple[BreakerDocument, ...], means("the breakers that are not closed")]
    is_claiming: bool
    lost_roots: Annotated[tuple[str, ...], means("why the files of some roots cannot be reached")]
    limits: Annotated[tuple[str, ...], means("route limits that jobs are waiting for")]
    is_alive: bool
    slots: int
    busy: int
    jobs: Annotated[tuple[HeldJobDocument, ...], means("longest running first")]
    is_draining: Annotated[bool, means("stopping or replaced: its jobs finish, and it claims no more")] = False
    heartbeat_age_s: Annotated[float | None, means("since its last heartbeat; null if unknown or ended")] = None
    heartbeat_ttl_s: Annotated[float | None, means("how long a heartbeat lasts: its worker.heartbeat_ttl")] = None
    is_silent: Annotated[bool, means("a heartbeat is overdue (is_alive) or ended, or its process is gone")] = False
    deliveries: Annotated[int, means("webhook deliveries, sent outside the slots; not in `busy`")] = 0


def worker_documents(views: Iterable[WorkerView], now_ms: int) -> tuple[WorkerDocument, ...]:
    """Slots grouped by process, the longest running job first."""
    groups: dict[tuple[str, int, int, int], list[WorkerView]] = {}
    for view in views:
        info = view.info
        groups.setdefault((info.host, info.pid, info.started_ms, info.loaded_ms), []).append(view)
    return tuple(_worker(group, now_ms) for _, group in sorted(groups.items()))


def _worker(views: list[WorkerView], now_ms: int) -> WorkerDocument:
    info = views[0].info
    is_alive = any(view.is_alive for view in views)
    heartbeat_age_s = _heartbeat_age_s(views)
    slots = sum(not view.info.is_extra for view in views)
    if not is_alive:  # a reaper may have removed some of its slots already
        slots = max(slots, info.count)
    held = (_held_job(view, now_ms) for view in views if view.raw)
    found = sorted(held, key=lambda job: (-(job.running_s or 0), job.worker_id))
    jobs = [job for job in found if job.type != DELIVERY_TYPE]
    if is_alive:  # the others were claimed in advance, and have not begun
        del jobs[slots:]
    deliveries = [job for job in found if job.type == DELIVERY_TYPE]
    return WorkerDocument(
        started_at=stamp(info.started_ms),
        breakers=tuple(map(_breaker, info.breakers)),
        is_claiming=info.is_claiming and (info.breaker != "open" or bool(info.breakers)) and not info.is_draining,
        is_alive=is_alive,
        slots=slots,
        busy=len(jobs),
        jobs=(*jobs, *deliveries),
        heartbeat_age_s=heartbeat_age_s,
        heartbeat_ttl_s=info.lease_ms / 1000 if info.lease_ms else None,
        is_silent=not is_alive or (heartbeat_age_s or 0) * 1000 > _SILENT_SHARE * info.lease_ms,
        deliveries=len(deliveries),
        **_same(info, "host", "pid", "version", "queues", "breaker", "lost_roots", "limits", "is_draining"),
    )


def _heartbeat_age_s(views: list[WorkerView]) -> float | None:
    """None if it is unknown: the heartbeat has ended, or the worker or the broker does not say how long it lasts."""
    left_ms, lease_ms = max(view.left_ms for view in views), views[0].info.lease_ms
    return max(0, lease_ms - left_ms) / 1000 if left_ms and lease_ms else None


def _breaker(one: OpenBreaker) -> BreakerDocument:
    next_probe_at = stamp(one.next_probe_ms)
    return BreakerDocument(one.route, one.state, one.error, one.failure_share, next_probe_at, one.deferred)


def _held_job(view: WorkerView, now_ms: int) -> HeldJobDocument:
    job = decode_or_none(view.raw)
    running_s = max(0, now_ms - view.since_ms) / 1000 if view.since_ms else None
    known = (job.id, job.filepath or None, job.type) if job is not None else ("", None, None)
    return HeldJobDocument(view.slot, *known, running_s)


class CallbackDocument(Struct, frozen=True):
    """A callback of a batch. Its job exists once `is_fired`."""

    kind: Annotated[str, means("then, catch or finally")]
    job_id: Annotated[str, means("the id of its job, known from the start")]
    is_fired: Annotated[bool, means("the job was enqueued")]
    status: Annotated[str | None, means("of its job; null in lists, and if it has no record")] = None
    type: Annotated[str | None, means("of its job; null in lists, and if it has no record")] = None
    error: Annotated[str | None, means("of its job")] = None


@public()
class BatchDocument(Struct, frozen=True):
    """One batch at one moment. total = waiting + running + completed + dead + cancelled + deleted. A child batch is one
    member; while it is unfinished it is `waiting`."""

    id: str
    name: Annotated[str, means("empty if it has none")] = ""
    parent: Annotated[str | None, means("the batch it is a member of")] = None
    status: Annotated[str, means("open, sealed or finished")] = BatchState.OPEN.value
    is_finished: bool = False
    is_cancelled: Annotated[bool, means("its unfinished jobs were cancelled")] = False
    is_success: Annotated[bool, means("finished, not cancelled, and every member was completed")] = False
    allow_failures: Annotated[bool, means("a dead job does not cancel the others")] = False
    priority: Annotated[str, means("default queue of its jobs; empty if it was created without one")] = ""
    total: Annotated[int, means("members; the sum of the next six fields")] = 0
    waiting: int = 0
    running: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    deleted: int = 0
    created_at: Time = None
    sealed_at: Time = None
    finished_at: Time = None
    first_dead: Annotated[str | None, means("the member that died first, a job or a child batch")] = None
    first_error: Annotated[str | None, means("its error")] = None
    callbacks: tuple[CallbackDocument, ...] = ()
    failures: Annotated[tuple[JobDocument, ...], means("the first ten dead jobs; none in lists")] = ()

    @property
    def ended(self) -> int:
        """Members that have ended."""
        return self.total - self.waiting - self.running


class BatchInfo(Struct, frozen=True, omit_defaults=True):
    """What fileq keeps in the `info` of a batch. `made_by` is the id of the key that created it through a server, if
    that key may add to its own batches only."""

    priority: str = ""
    made_by: str = ""


def info_of(raw: bytes) -> BatchInfo:
    """Empty for what another program has put there."""
    try:
        return msgspec.json.decode(raw, type=BatchInfo) if raw else BatchInfo()
    except (msgspec.DecodeError, ValueError):
        return BatchInfo()


def batch_document(
    view: Batch, callbacks: Mapping[str, Record | None] = {}, dead: Iterable[Record] = ()
) -> BatchDocument:
    """`callbacks` are the records of the jobs of its callbacks by their ids, `dead` those of its dead members."""
    is_finished = view.state is BatchState.FINISHED
    first = sorted(dead, key=lambda record: record.ended_ms)[:FAILURES_SHOWN]
    return BatchDocument(
        parent=view.parent or None,
        status=view.state.value,
        is_finished=is_finished,
        is_success=is_finished and view.is_success,
        priority=info_of(view.info).priority,
        created_at=stamp(view.created_ms),
        sealed_at=stamp(view.sealed_ms),
        finished_at=stamp(view.finished_ms),
        first_dead=view.dead_id or None,
        first_error=view.dead_error or None,
        callbacks=tuple(_callback(view, one.kind, callbacks) for one in view.callbacks),
        failures=tuple(job_document(record, is_outline=True) for record in first),
        **_same(view, "id", "name", "is_cancelled", "allow_failures"),
        **_same(view, "total", "waiting", "running", "completed", "dead", "cancelled", "deleted"),
    )


def known_batch(id: str, view: Batch | None) -> BatchDocument:
    """Raises BatchError if there is no such batch."""
    if view is None:
        raise unknown_batch(id)
    return batch_document(view)


def unknown_batch(id: str) -> BatchError:
    return BatchError(f"no batch has the id {id!r} (finished ones are kept for 30 days); see 'fileq batch list'")


def _callback(view: Batch, kind: CallbackKind, records: Mapping[str, Record | None]) -> CallbackDocument:
    id, is_fired = callback_id(view.id, kind), kind in view.fired
    record = records.get(id)
    if record is None:
        return CallbackDocument(kind.value, id, is_fired)
    job = job_document(record, is_outline=True)
    return CallbackDocument(kind.value, id, is_fired, job.status, job.type, job.error)
