"""New jobs, one or many at once; one job: look at it, wait for it, cancel it, retry it, make it due; lists of jobs."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.catalog import NAME_RULE
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult, EnqueueResult, Record
from fileq.client.transport import VETOED
from fileq.core.api_key import Scope, has_parent_parts
from fileq.core.errors import ConfigError
from fileq.core.job import OWN_TAGS, State, decode_or_none
from fileq.core.job_options import EnqueueOptions, JobRequest, declared_options, options_of
from fileq.core.units import LONGEST_S
from fileq.handlers.registry import typed_request
from fileq.queries.documents import EnqueuedDocument, JobDocument, enqueued_document, info_of, job_document
from fileq.queries.job_filter import JobConditions, JobFilter, StoredJob, conditions_in, read_conditions
from fileq.queries.job_ids import why_unknown
from fileq.queries.job_queries import wait_reasons
from fileq.queries.job_selection import SCAN_MAX, complete_records, job_page
from fileq.server.connections import until_first, until_gone
from fileq.server.problems import ApiProblem, FieldProblem, glob_problems, invalid, invalid_at, problem_of
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES = RouteList("jobs")

COMMAND_TYPE = "command"
DIGEST_TAG = "fileq.request_digest"
BULK_MAX = 1000
BULK_BYTES = 16 << 20
KEY_LENGTH = 255  # of an Idempotency-Key
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
PathText = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]  # no file has a NUL in its name
DurationValue = Annotated[float, Meta(ge=0, le=LONGEST_S)] | Annotated[str, Meta(max_length=50)]


class NewJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job to enqueue: a `type` with a `payload`, the `path` of a file, or a `command`. Durations are seconds, or
    texts such as "5m". `deadline` is a time, or a duration from now. `timeout` and `max_retries` of a restricted key,
    or of one without `read`, lower those of the job's route and never raise them. With a `batch_id` it becomes a member
    of that batch."""

    type: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    payload: Any = UNSET
    path: PathText | None = None
    command: Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = (
        None
    )
    priority: Annotated[str, Meta(max_length=100)] | None = None
    max_retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    timeout: DurationValue | None = None
    delay: DurationValue | None = None
    scheduled_at: Annotated[datetime, Meta(tz=True)] | None = None
    id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    unique_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    deadline: DurationValue | None = None
    tags: Annotated[dict[str, str], Meta(max_length=20)] | None = None
    batch_id: Annotated[str, Meta(pattern=f"^{NAME_RULE}$")] | None = None


class NewJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to enqueue. All are checked before the first is enqueued."""

    jobs: Annotated[tuple[NewJob, ...], Meta(min_length=1, max_length=BULK_MAX)]


class BulkJob(Struct, frozen=True):
    """`result` is enqueued, duplicate (`id` is that of the job that is there already; "" if the key does not see it) or
    vetoed (there is no job). `warning` says that no running worker takes the job; null if one does, or if that is
    unknown."""

    id: str
    result: str
    warning: str | None = None


class BulkJobs(Struct, frozen=True):
    """`jobs` has the order of the request; `enqueued` of them are new."""

    jobs: tuple[BulkJob, ...]
    enqueued: int


class WaitQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`timeout` in seconds."""

    timeout: Annotated[float, Meta(ge=0, le=60)] = 30.0


class RetryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`probe=true`: the job is tried to see if the cause is gone. It is the next one of its queue, and an open circuit
    breaker lets it run."""

    probe: bool = False


class JobMessage(Struct, frozen=True):
    message: str


class CancelMessage(Struct, frozen=True):
    """`result` is cancelled, requested of the worker that runs the job, or ended if it was cancelled before."""

    message: str
    result: Literal["cancelled", "requested", "ended"]


class RetryMessage(Struct, frozen=True):
    message: str
    status: str


@ROUTES.add(
    "POST /jobs",
    Scope.ENQUEUE,
    "enqueue a job",
    serves_limited=True,
    status=201,
    statuses={200: "the existing job with this id or unique key"},
    problems=("vetoed", "not-allowed", "batch-closed", "duplicate"),
    has_idempotency_key=True,
)
def enqueue_job(request: ApiRequest[NoQuery, NewJob]) -> ApiAnswer[EnqueuedDocument]:
    """201 with the job, also for a repeat with the same Idempotency-Key; 200 if a job with this id or unique key was
    there already. If the key does not see that job, the problem `duplicate` says only that there is one."""
    repeat = _idempotent(request)
    wanted = _job_request(request, request.body, repeat)
    _check_batches(request, [request.body])
    [made] = request.services.transport.enqueue([wanted])
    if made.fate == VETOED:
        raise ApiProblem("vetoed", "a function with @fileq.before_enqueue refused the job")
    record, is_new = made.record, made.record is not None
    if record is None:
        [record] = request.broker.records([made.id])
        if not request.caller.sees(decode_or_none(record.raw) if record else None):
            raise ApiProblem("duplicate", "a job with this id or unique key already exists, and this key can't see it")
        if record is None:
            raise ApiProblem("not-found", why_unknown(made.id))
        _check_repeat(record, repeat)
    request.note.about(record)
    document = enqueued_document(record, made.warning)
    location = {"Location": f"{request.config.server.base_path}/api/v1/jobs/{quote(document.id, safe='')}"}
    return ApiAnswer(document, 201 if is_new or repeat is not None else 200, location)


@ROUTES.add(
    "POST /jobs/bulk",
    Scope.ENQUEUE,
    "enqueue up to 1,000 jobs, after checking all of them",
    serves_limited=True,
    status=201,
    statuses={200: "all of them already exist"},
    problems=("not-allowed", "batch-closed"),
    has_idempotency_key=True,
    body_max=BULK_BYTES,
    timeout_s=10.0,
)
def enqueue_jobs(request: ApiRequest[NoQuery, NewJobs]) -> ApiAnswer[BulkJobs]:
    """201 with the ids in the order of the request; 200 if none of them is new."""
    caller, repeat = request.caller, _idempotent(request)
    wanted: list[JobRequest] = []
    problems: list[FieldProblem] = []
    for index, new in enumerate(request.body.jobs):
        try:
            wanted.append(_job_request(request, new, _repeat_of(repeat, index)))
        except (ApiProblem, ConfigError) as error:
            problem = problem_of(error)
            if problem is None or problem.slug != "invalid":
                raise
            problems += (FieldProblem(f"/jobs/{index}{one.pointer}", one.detail) for one in problem.errors)
    if problems:
        raise invalid(problems)
    _check_batches(request, request.body.jobs)
    if (first := _repeat_of(repeat, 0)) is not None:
        _check_repeat(request.broker.records([first.job_id])[0], first)
    try:
        made = request.services.transport.enqueue(wanted)
    except ConfigError as error:
        raise invalid([FieldProblem("/jobs", problem) for problem in error.problems]) from error
    known = [one.id for one in made if one.fate == EnqueueResult.DUPLICATE] if caller.is_limited else []
    records = zip(known, request.broker.records(known) if known else (), strict=True)
    unseen = {id for id, one in records if one is None or not caller.sees(decode_or_none(one.raw))}
    jobs = tuple(BulkJob("" if one.id in unseen else one.id, one.fate, one.warning or None) for one in made)
    enqueued = sum(job.result == EnqueueResult.ENQUEUED for job in jobs)
    return ApiAnswer(BulkJobs(jobs, enqueued), 201 if enqueued or repeat is not None else 200, count=enqueued)


def _job_request(request: ApiRequest[Any, Any], new: NewJob, repeat: IdempotentRequest | None) -> JobRequest:
    """What is to be enqueued. Raises ApiProblem with everything that is wrong, and for a job that the caller may not
    enqueue."""
    caller, problems = request.caller, [*_problems(request, new, repeat)]
    digest = {DIGEST_TAG: repeat.digest} if repeat is not None else {}
    given = {name: getattr(new, option.sent_as) for name, option in declared_options(EnqueueOptions).items()}
    given["id"] = repeat.job_id if repeat is not None else new.id
    given["tags"] = {**(new.tags or {}), **digest, **caller.own_tags}
    try:
        options = options_of(cast(EnqueueOptions, given))
    except ConfigError as error:
        problems += (FieldProblem("", one) for one in error.problems)
    if problems:
        raise invalid(problems)
    # The trace of the program that sends the request; a header of another form counts as none.
    if (found := _TRACEPARENT.fullmatch(request.headers.get("traceparent", "").strip())) is not None:
        options = replace(options, trace_id=found[1], span_id=found[2])
    if new.path is not None:
        caller.check_path(new.path)
        return JobRequest(options, path=new.path)
    type = COMMAND_TYPE if new.type is None else new.type
    caller.check_type(type)
    return typed_request(type, new.payload if new.command is None else {"command": new.command}, options)


def _problems(request: ApiRequest[Any, Any], new: NewJob, repeat: IdempotentRequest | None) -> Iterator[FieldProblem]:
    given = [name for name in ("type", "path", "command") if getattr(new, name) is not None]
    if len(given) != 1:
        also = f", not {' and '.join(given)}" if given else ""
        yield FieldProblem("", f"give one of type, path and command{also}")
    if new.path is not None and not isinstance(new.payload, UnsetType):
        yield FieldProblem("/payload", "payload goes with type; the job of a file has none")
    if repeat is not None and new.id is not None:
        yield FieldProblem("/id", "id is set, and Idempotency-Key too, which makes the id; give one")
    queues = request.config.worker.priorities
    if new.priority and new.priority not in queues:
        yield FieldProblem("/priority", f"priority is {new.priority!r}; it must be one of {', '.join(queues)}")
    if new.path is not None and has_parent_parts(os.fsencode(new.path)):  # whose meaning depends on links
        yield FieldProblem("/path", f"path is {new.path[:100]!r}; it must have no .. in it")
    yield from tag_problems(new.tags)


def tag_problems(tags: Mapping[str, str] | None) -> Iterator[FieldProblem]:
    """Tags that the server itself adds are taken from no client."""
    for name in tags or ():
        if name.startswith(OWN_TAGS):
            yield FieldProblem("/tags", f"the tag {name[:100]!r} begins with {OWN_TAGS}; choose another")


def _check_batches(request: ApiRequest[Any, Any], jobs: Iterable[NewJob]) -> None:
    """Raises ApiProblem for a batch that the caller may not add to, as if there were none."""
    ids = {} if request.caller.changes_all_batches else {new.batch_id: None for new in jobs if new.batch_id}
    if not ids:
        return
    for id, view in zip(ids, request.broker.batches_by_id(list(ids)), strict=True):
        if view is not None and info_of(view.info).made_by != request.caller.id:
            raise ApiProblem("batch-closed", f"batch {id} no longer accepts jobs, or does not exist")


class IdempotentRequest(Struct, frozen=True):
    """`job_id` follows from the key and the caller, so a repeat finds the same job. `digest` is that of the body."""

    job_id: str
    digest: str


def _idempotent(request: ApiRequest[Any, Any]) -> IdempotentRequest | None:
    """None without an Idempotency-Key. Raises ApiProblem for one that can't be used. Only servers can compute the id of
    the job, so that another caller can't take it before."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
        raise invalid_at("", f"Idempotency-Key must be 1 to {KEY_LENGTH} printable ASCII characters")
    digest = request.services.signer.digest("idempotency-key", f"{request.caller.id}\0{key}")
    body = request.raw_body  # two spellings of one JSON value are the same
    canonical = msgspec.json.encode(msgspec.json.decode(body), order="sorted") if body else b""
    job_id = str(uuid.UUID(bytes=digest[:16], version=4))
    return IdempotentRequest(job_id, hashlib.sha256(canonical).hexdigest()[:32])


def _repeat_of(repeat: IdempotentRequest | None, index: int) -> IdempotentRequest | None:
    """Each job of the request has an id of its own, which follows from the key too."""
    if repeat is None:
        return None
    return IdempotentRequest(str(uuid.uuid5(uuid.UUID(repeat.job_id), str(index))), repeat.digest)


def _check_repeat(record: Record | None, repeat: IdempotentRequest | None) -> None:
    """Raises ApiProblem if the Idempotency-Key was used with another body."""
    job = decode_or_none(record.raw) if record is not None else None
    if repeat is None or job is None or job.id != repeat.job_id:
        return
    if job.tag_values.get(DIGEST_TAG) != repeat.digest:
        raise ApiProblem("idempotency-mismatch", f"Idempotency-Key was used with another body, for job {job.id}")


@ROUTES.add(
    "GET /jobs/{id}", (Scope.READ, Scope.ENQUEUE), "everything known about a job", serves_limited=True, has_etag=True
)
def show_job(request: ApiRequest[NoQuery, UnsetType]) -> JobDocument:
    return waiting_document(request.broker, seen_record(request))


def waiting_document(broker: FullBroker, record: Record) -> JobDocument:
    """With what keeps the job from running. One round trip while it waits."""
    return job_document(record, wait_reasons(broker, [record]).get(record.id, ()))


@ROUTES.add(
    "GET /jobs/{id}/wait",
    (Scope.READ, Scope.ENQUEUE),
    "wait until a job has ended",
    serves_limited=True,
    statuses={202: "the job has not ended yet"},
)
async def wait_for_job(request: ApiRequest[WaitQuery, UnsetType]) -> ApiAnswer[JobDocument]:
    """200 once the job has ended, 202 with its present state after the timeout."""
    services = request.services

    def read() -> JobDocument:
        return job_document(seen_record(request))

    document = await services.pool.call(read)
    if not document.is_finished and request.query.timeout:
        waiting = services.waits.until_ended(request.id, request.query.timeout, request.caller.id)
        assert request.http is not None
        await until_first(waiting, until_gone(request.http.receive, "http.disconnect"))
        document = await services.pool.call(read)
    return ApiAnswer(document, 200 if document.is_finished else 202)


@ROUTES.add(
    "DELETE /jobs/{id}",
    Scope.OPERATE,
    "cancel a job",
    serves_limited=True,
    statuses={202: "the job is running; its worker cancels it"},
    problems=("conflict",),
)
def cancel_job(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[CancelMessage]:
    id, services = request.id, request.services
    if request.caller.is_limited:
        seen_record(request)
    result = services.transport.cancel(id)
    [record] = request.broker.records([id])
    if record is not None:
        request.note.about(record)
    if result is CancelResult.UNKNOWN:
        raise ApiProblem("not-found", why_unknown(id))
    if result is CancelResult.ENDED:
        if record is not None and record.state is not State.CANCELLED:
            raise ApiProblem("conflict", f"job {id} can't be cancelled: it is {record.state.value}")
        return ApiAnswer(CancelMessage("Job cancelled", "ended"))  # a repeat
    is_requested = result in (CancelResult.REQUESTED, CancelResult.REQUESTED_BEFORE)
    if result is not CancelResult.REQUESTED_BEFORE:
        services.action_log.add(JobAction.CANCEL, request.caller.name, [id])
        before, after = ("running", "cancellation requested") if is_requested else ("pending", "cancelled")
        request.note.changed({"status": before}, {"status": after})
    if is_requested:
        return ApiAnswer(CancelMessage("Job cancellation requested", "requested"), 202)
    return ApiAnswer(CancelMessage("Job cancelled", "cancelled"))


@ROUTES.add("POST /jobs/{id}/retry", Scope.OPERATE, "retry a dead job", serves_limited=True, problems=("conflict",))
def retry_job(request: ApiRequest[RetryQuery, UnsetType]) -> RetryMessage:
    request.note.about(seen_record(request))
    request.note.detail = "as a probe" if request.query.probe else ""
    request.services.transport.retry(request.id, is_probe=request.query.probe)
    request.services.action_log.add(JobAction.RETRY, request.caller.name, [request.id])
    return RetryMessage("Job re-enqueued", State.PENDING.value)


@ROUTES.add(
    "POST /jobs/{id}/run",
    Scope.OPERATE,
    "make a scheduled, retrying or deferred job due now",
    serves_limited=True,
    problems=("conflict",),
)
def run_job(request: ApiRequest[NoQuery, UnsetType]) -> RetryMessage:
    """A job that waits for its time goes to the end of its queue now. Repeated, it changes nothing."""
    id = request.id
    if request.caller.is_limited:
        seen_record(request)
    [is_moved] = request.broker.due_now([id])
    record = seen_record(request)
    request.note.about(record)
    if not is_moved and record.state is not State.PENDING:
        raise ApiProblem("conflict", f"job {id} can't be made due: it is {record.state.value}")
    if is_moved:
        request.services.action_log.add(JobAction.RUN, request.caller.name, [id])
    return RetryMessage("Job is due now", State.PENDING.value)


def seen_record(request: ApiRequest[Any, Any]) -> Record:
    """Of the job that the path names. Raises ApiProblem if it is unknown, or is none that the caller sees."""
    [record] = request.broker.records([request.id])
    if record is None or not request.caller.sees(decode_or_none(record.raw)):
        raise ApiProblem("not-found", why_unknown(request.id))
    return record


# Lists of jobs: which jobs a request means, and one page of them, for GET /jobs and GET /dead.


def filter_of(request: ApiRequest[Any, Any], given: JobConditions, *, at: str = "?") -> JobFilter:
    """The filter, within what the caller's key is for. `at` is where the conditions are in the request: `?`, or a JSON
    pointer that ends with a slash. Raises ApiProblem with everything that is wrong."""
    hides_paths = request.services.hides_paths
    wanted, wrong = read_conditions(given, request.config.worker.priorities, request.services.now_ms())
    found = [FieldProblem(f"{at}{name}", detail) for name, detail in wrong]
    if found := found + glob_problems(given.match, f"{at}match", hides_paths=hides_paths):
        raise invalid(found)
    return replace(wanted, ignores_paths=hides_paths, only=request.caller.restriction or None)


REACH = 10_000  # jobs that `page` and `limit` can reach; cursors have no end
LIMIT_MAX = 1000
RECORDS_AT_ONCE = 50
_AT_ONCE_BYTES = 4 << 20


class JobListQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """A list: its conditions, and which page. `cursor` is the `next_cursor` of the page before; it has no end, while
    `page` times `limit` is at most 10,000."""

    page: Annotated[int, Meta(ge=1, le=REACH)] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 20
    cursor: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class JobList(Struct, frozen=True):
    """Jobs of a list: running, waiting, delayed, then dead, completed and cancelled ones, the newest first. `total` is
    null if it would take a long scan to know it. `scanned` elements were looked at; `is_partial`: the scan ended before
    the page was full, or its jobs are too long together (32 MiB), so follow `next_cursor`, which is null at the end."""

    jobs: tuple[JobDocument, ...]
    total: int | None
    page: int
    limit: int
    next_cursor: str | None
    scanned: int
    is_partial: bool


class _Cursor(Struct, frozen=True, array_like=True):
    """`until_ms` and `since_ms` keep what a duration such as 2h meant on the first page."""

    position: str
    page: int
    since_ms: int | None
    until_ms: int | None


def list_page(
    request: ApiRequest[Any, Any], name: str, wanted: JobFilter | None = None, *, scan_max: int = SCAN_MAX
) -> JobList:
    """What the query of the request asks for. `name` is that of the list; `wanted` replaces the filter of the query."""
    query, signer = request.query, request.services.signer
    if wanted is None:
        wanted = filter_of(request, query)
    number, position = query.page or 1, ""
    # The same text for the same conditions: it binds a cursor to its list.
    list_name = f"{name}:{msgspec.json.encode(conditions_in(query), order='sorted').decode()}"
    if query.cursor is not None and query.page is not None:
        raise invalid_at("?page", "page and cursor are both given; give one of them")
    if (cursor := signer.read_cursor(list_name, query.cursor, _Cursor)) is not None:
        number, position = cursor.page, cursor.position
        wanted = replace(wanted, since_ms=cursor.since_ms, until_ms=cursor.until_ms)
    elif number * query.limit > REACH:
        detail = f"page {number} of {query.limit} is beyond {REACH:,} jobs; follow next_cursor instead"
        raise invalid_at("?page", detail)
    skip = 0 if position else (number - 1) * query.limit
    bounds = {"limit": query.limit, "skip": skip, "scan_max": scan_max}
    queues = request.config.worker.priorities
    page = job_page(request.broker, queues, wanted, cursor=position, has_records=False, **bounds)
    following = _Cursor(page.next_cursor, number + 1, wanted.since_ms, wanted.until_ms)
    return JobList(
        jobs=tuple(_documents(request.broker, page.jobs)),
        total=page.total,
        page=number,
        limit=query.limit,
        next_cursor=signer.cursor(list_name, following) if page.next_cursor else None,
        scanned=page.scanned,
        is_partial=page.is_partial,
    )


def _documents(broker: FullBroker, jobs: Sequence[StoredJob]) -> Iterator[JobDocument]:
    """Reads the records in parts: together they may be much longer than what is shown of them."""
    part, size = list[StoredJob](), 0
    for stored in jobs:
        if part and (len(part) == RECORDS_AT_ONCE or size + len(stored.raw) > _AT_ONCE_BYTES):
            yield from (one.document() for one in complete_records(broker, part))
            part, size = [], 0
        part.append(stored)
        size += len(stored.raw)
    yield from (one.document() for one in complete_records(broker, part))


@ROUTES.add("GET /jobs", Scope.READ, "jobs that match all conditions", serves_limited=True, is_scan=True)
def list_jobs(request: ApiRequest[JobListQuery, UnsetType]) -> JobList:
    return list_page(request, "jobs")
