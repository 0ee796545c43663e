"""Lists of jobs, many new jobs at once, and one job made due."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.protocol import FullBroker
from fileq.client.client import span_of_caller
from fileq.client.options import EnqueueOptions, options_of
from fileq.client.tasks import FileCall, TaskCall
from fileq.client.transport import VETOED
from fileq.config import Config
from fileq.core.api_key import Scope
from fileq.core.errors import ConfigError
from fileq.core.job import State, decode_or_none
from fileq.queries.documents import JobDocument
from fileq.queries.job_filter import JobConditions, JobFilter, StoredJob, conditions_in, read_conditions
from fileq.queries.job_selection import SCAN_MAX, complete_records, job_page
from fileq.server.api.job_endpoints import (
    COMMAND_TYPE,
    DIGEST_TAG,
    NewJob,
    RetryMessage,
    check_batches,
    job_options,
    seen_record,
)
from fileq.server.conditional import IdempotentRequest, idempotent_request
from fileq.server.decoding import glob_problems, invalid
from fileq.server.identity import Caller
from fileq.server.problems import ApiProblem, FieldProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList
from fileq.server.services import Services

ROUTES = RouteList("jobs")


def filter_of(given: JobConditions, config: Config, now_ms: int, caller: Caller, *, at: str = "?") -> JobFilter:
    """The filter, within what the caller's key is for. `at` is where the conditions are in the request: `?`, or a JSON
    pointer that ends with a slash. Raises ApiProblem with everything that is wrong."""
    wanted, wrong = read_conditions(given, config.worker.priorities, now_ms)
    hides_paths = config.server.files == "none"
    found = [FieldProblem(f"{at}{name}", detail) for name, detail in wrong]
    found += glob_problems(given.match, f"{at}match", hides_paths=hides_paths)
    if found:
        raise invalid(found)
    return replace(wanted, ignores_paths=hides_paths, only=caller.restriction or None)


def name_of(given: JobConditions) -> str:
    """A text that is the same for the same conditions: it binds a cursor to its list."""
    return msgspec.json.encode(conditions_in(given), order="sorted").decode()


# One page of a list of jobs, for GET /jobs and GET /dead.


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
    services: Services,
    query: JobListQuery,
    name: str,
    caller: Caller,
    wanted: JobFilter | None = None,
    *,
    scan_max: int = SCAN_MAX,
) -> JobList:
    """`name` is that of the list; `wanted` replaces the filter that the query describes."""
    if wanted is None:
        wanted = filter_of(query, services.config, services.now_ms(), caller)
    number, position = query.page or 1, ""
    list_name = f"{name}:{name_of(query)}"
    if query.cursor is not None:
        if query.page is not None:
            raise invalid([FieldProblem("?page", "page and cursor are both given; give one of them")])
        cursor = services.signer.read_cursor(list_name, query.cursor, _Cursor)
        number, position = cursor.page, cursor.position
        wanted = replace(wanted, since_ms=cursor.since_ms, until_ms=cursor.until_ms)
    elif number * query.limit > REACH:
        detail = f"page {number} of {query.limit} is beyond {REACH:,} jobs; follow next_cursor instead"
        raise invalid([FieldProblem("?page", detail)])
    skip = 0 if position else (number - 1) * query.limit
    page = job_page(
        services.broker,
        services.config.worker.priorities,
        wanted,
        cursor=position,
        limit=query.limit,
        skip=skip,
        scan_max=scan_max,
        has_records=False,
    )
    following = _Cursor(page.next_cursor, number + 1, wanted.since_ms, wanted.until_ms)
    return JobList(
        jobs=tuple(_documents(services.broker, page.jobs)),
        total=page.total,
        page=number,
        limit=query.limit,
        next_cursor=services.signer.cursor(list_name, following) if page.next_cursor else None,
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


BULK_MAX = 1000
DUPLICATE = "duplicate"
BULK_BYTES = 16 << 20


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


@ROUTES.add("GET /jobs", Scope.READ, "jobs that meet all conditions", serves_limited=True, is_scan=True)
def list_jobs(request: ApiRequest[JobListQuery, UnsetType]) -> JobList:
    return list_page(request.services, request.query, "jobs", request.caller)


@ROUTES.add(
    "POST /jobs/bulk",
    Scope.ENQUEUE,
    "enqueue up to 1,000 jobs, after all of them were checked",
    serves_limited=True,
    status=201,
    statuses={200: "all of them are there already"},
    problems=("idempotency-mismatch", "not-allowed", "batch-closed"),
    has_idempotency_key=True,
    body_max=BULK_BYTES,
    timeout_s=10.0,
)
def enqueue_jobs(request: ApiRequest[NoQuery, NewJobs]) -> ApiAnswer[BulkJobs]:
    """201 with the ids in the order of the request; 200 if none of them is new."""
    services = request.services
    repeat = idempotent_request(request.headers, request.caller, request.raw_body, request.services.signer)
    calls: list[TaskCall[Any, Any] | FileCall] = []
    problems: list[FieldProblem] = []
    for index, new in enumerate(request.body.jobs):
        if found := [*_problems(new, index, repeat, request)]:
            problems += found
            continue
        calls.append(_call(request, new, _repeat_of(repeat, index)))
    if problems:
        raise invalid(problems)
    check_batches(request, request.body.jobs)
    _check_repeat(_repeat_of(repeat, 0), services)
    try:
        with span_of_caller(request.headers.get("traceparent", "")):
            handles = services.client.enqueue_many(calls)
    except ConfigError as error:
        raise invalid([FieldProblem("/jobs", problem) for problem in error.problems]) from error
    known = [handle.id for handle in handles if _result(handle.fate) == DUPLICATE] if request.caller.is_limited else []
    records = zip(known, services.broker.records(known) if known else (), strict=True)
    unseen = {id for id, one in records if one is None or not request.caller.sees(decode_or_none(one.raw))}
    jobs = tuple(BulkJob("" if one.id in unseen else one.id, _result(one.fate), one.warning or None) for one in handles)
    enqueued = sum(job.result == "enqueued" for job in jobs)
    return ApiAnswer(BulkJobs(jobs, enqueued), 201 if enqueued or repeat is not None else 200, count=enqueued)


def _problems(
    new: NewJob, index: int, repeat: IdempotentRequest | None, request: ApiRequest[NoQuery, NewJobs]
) -> Iterator[FieldProblem]:
    at = f"/jobs/{index}"
    given = [name for name in ("type", "path", "command") if getattr(new, name) is not None]
    if len(given) != 1:
        also = f", not {' and '.join(given)}" if given else ""
        yield FieldProblem(at, f"give one of type, path and command{also}")
    if new.path is not None and not isinstance(new.payload, UnsetType):
        yield FieldProblem(f"{at}/payload", "payload goes with type; the job of a file has none")
    if repeat is not None and new.id is not None:
        yield FieldProblem(f"{at}/id", "id is set, and Idempotency-Key too, which makes the id; give one")
        return
    queues = request.services.config.worker.priorities
    if new.priority and new.priority not in queues:
        detail = f"priority is {new.priority!r}; it must be one of {', '.join(queues)}"
        yield FieldProblem(f"{at}/priority", detail)
    try:
        options_of(job_options(new, None, request.caller))
    except ConfigError as error:
        yield from (FieldProblem(at, problem) for problem in error.problems)
    except ApiProblem as problem:
        yield from (FieldProblem(f"{at}{one.pointer}", one.detail) for one in problem.errors)


def _call(
    request: ApiRequest[NoQuery, NewJobs], new: NewJob, repeat: IdempotentRequest | None
) -> TaskCall[Any, Any] | FileCall:
    options: EnqueueOptions = job_options(new, repeat, request.caller)
    if new.path is not None:
        request.caller.check_path(new.path)
        return FileCall(new.path, **options)
    if new.command is not None:
        request.caller.check_type(COMMAND_TYPE)
        return TaskCall(COMMAND_TYPE, {"command": new.command}, **options)
    assert new.type is not None
    request.caller.check_type(new.type)
    return TaskCall(new.type, UNSET if isinstance(new.payload, UnsetType) else new.payload, **options)


def _repeat_of(repeat: IdempotentRequest | None, index: int) -> IdempotentRequest | None:
    """Each job of the request has an id of its own, which follows from the key too."""
    if repeat is None:
        return None
    return IdempotentRequest(str(uuid.uuid5(uuid.UUID(repeat.job_id), str(index))), repeat.digest)


def _check_repeat(first: IdempotentRequest | None, services: Services) -> None:
    """Raises ApiProblem if the Idempotency-Key was used with another body: the first job of that request tells it."""
    if first is None:
        return
    [record] = services.broker.records([first.job_id])
    job = decode_or_none(record.raw) if record is not None else None
    if job is not None and job.tag_values.get(DIGEST_TAG) != first.digest:
        raise ApiProblem("idempotency-mismatch", f"Idempotency-Key was used with another body, for job {job.id}")


def _result(fate: str | None) -> str:
    return fate if fate in ("enqueued", VETOED) else DUPLICATE


@ROUTES.add(
    "POST /jobs/{id}/run",
    Scope.OPERATE,
    "make a scheduled, retrying or deferred job due now",
    serves_limited=True,
    problems=("conflict",),
)
def run_job(request: ApiRequest[NoQuery, UnsetType]) -> RetryMessage:
    """A job that waits for its time goes to the end of its queue now. Repeated, it changes nothing."""
    id, broker = request.params["id"], request.services.broker
    if request.caller.is_limited:
        seen_record(request, id)
    [is_moved] = broker.due_now([id])
    record = seen_record(request, id)
    request.note.about(record)
    if not is_moved and record.state is not State.PENDING:
        raise ApiProblem("conflict", f"job {id} can't be made due: it is {record.state.value}")
    if is_moved:
        request.services.action_log.add(JobAction.RUN, request.caller.name, [id])
    return RetryMessage("Job is due now", State.PENDING.value)
