"""Batches: create, add jobs, seal, cancel, retry. The functions are those of clients and of `fileq batch …`."""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.client.batch_handle import batch_request
from fileq.client.tasks import TaskCall
from fileq.client.transport import BatchRetry
from fileq.commands.batches import show_batch
from fileq.core.api_key import Scope
from fileq.core.batch import BatchState
from fileq.core.errors import BatchError
from fileq.core.job_options import EnqueueOptions
from fileq.queries.documents import BatchDocument, JobDocument, batch_document, info_of, unknown_batch
from fileq.server.api.job_endpoints import BULK_BYTES, BulkJobs, DurationValue, NewJobs, enqueue_jobs, tag_problems
from fileq.server.authentication import Caller
from fileq.server.problems import ApiProblem, checked_name, invalid
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES = RouteList("batches")

LIST = "batches"
ID = "^[A-Za-z0-9._-]{1,100}$"


class WantedCallback(Struct, frozen=True, forbid_unknown_fields=True):
    """The job of a callback. When it is enqueued, its `batch_facts` say how the batch stood."""

    type: Annotated[str, Meta(min_length=1, max_length=100)]
    payload: Any = UNSET
    priority: Annotated[str, Meta(max_length=100)] | None = None
    max_retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    timeout: DurationValue | None = None
    tags: Annotated[dict[str, str], Meta(max_length=20)] | None = None


class WantedBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch to create. Without an `id` it gets a new one; with one the request can be repeated. `then` is enqueued
    once all jobs are completed, `catch` when the first dies, `finally` when none is unfinished."""

    id: Annotated[str, Meta(pattern=ID)] | None = None
    name: Annotated[str, Meta(max_length=80)] = ""
    parent: Annotated[str, Meta(max_length=200)] = ""
    allow_failures: bool = False
    priority: Annotated[str, Meta(max_length=100)] = ""
    then: WantedCallback | None = None
    catch: WantedCallback | None = None
    finally_: WantedCallback | None = field(default=None, name="finally")


class BatchListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    unfinished: bool = False


class MemberQuery(Struct, frozen=True, forbid_unknown_fields=True):
    cursor: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None


class BatchList(Struct, frozen=True):
    """The newest first. `next_cursor` is null at the end."""

    batches: tuple[BatchDocument, ...]
    next_cursor: str | None


class DeadMembers(Struct, frozen=True):
    """In no defined order. A page may be empty before the end, where `next_cursor` is null."""

    jobs: tuple[JobDocument, ...]
    next_cursor: str | None


class BatchChange(Struct, frozen=True):
    message: str
    id: str
    has_changed: bool


@ROUTES.add(
    "POST /batches",
    Scope.ENQUEUE,
    "create a batch",
    serves_limited=True,
    status=201,
    statuses={200: "the existing batch with this id"},
    problems=("conflict", "not-allowed"),
)
def create_batch(request: ApiRequest[NoQuery, WantedBatch]) -> ApiAnswer[BatchDocument]:
    """200 with the present state if a batch has this id already."""
    wanted, caller, broker = request.body, request.caller, request.broker
    options: dict[str, Any] = {name: getattr(wanted, name) for name in ("allow_failures", "parent", "priority")}
    options |= {name: _callback(getattr(wanted, name), caller) for name in ("then", "catch", "finally_")}
    given = batch_request(wanted.name, id=wanted.id or "", **options)
    if not caller.changes_all_batches:
        given = replace(given, made_by=caller.id)
    if wanted.parent and not _changes(request, wanted.parent):
        raise ApiProblem("conflict", f"the parent {wanted.parent!r} no longer takes batches, or does not exist")
    [before] = broker.batches_by_id([given.id])
    if before is None:
        request.services.transport.create_batch(given)
    if not _sees(request, given.id):
        raise ApiProblem("conflict", f"a batch with the id {given.id!r} already exists; choose another id")
    location = {"Location": f"{request.config.server.base_path}/api/v1/batches/{given.id}"}
    return ApiAnswer(show_batch(broker, given.id), 201 if before is None else 200, location)


@ROUTES.add("GET /batches", Scope.READ, "all batches, newest first", is_scan=True)
def list_all_batches(request: ApiRequest[BatchListQuery, UnsetType]) -> BatchList:
    query, signer = request.query, request.services.signer
    place = f"{LIST}:{query.unfinished}"
    cursor = signer.read_cursor(place, query.cursor, str) or ""
    page = request.broker.batch_page(cursor, query.limit, unfinished=query.unfinished)
    return BatchList(tuple(map(batch_document, page.batches)), signer.cursor(place, page.next_cursor))


@ROUTES.add(
    "GET /batches/{id}",
    (Scope.READ, Scope.ENQUEUE),
    "one batch with its counts, callbacks and first failures",
    serves_limited=True,
    has_etag=True,
)
def show_one_batch(request: ApiRequest[NoQuery, UnsetType]) -> BatchDocument:
    """With its callbacks and its first failures."""
    return _report(request)


@ROUTES.add(
    "POST /batches/{id}/jobs",
    Scope.ENQUEUE,
    "add jobs to a batch",
    serves_limited=True,
    status=201,
    statuses={200: "none of the jobs is new"},
    problems=("batch-closed", "not-allowed", "conflict"),
    has_idempotency_key=True,
    body_max=BULK_BYTES,
    timeout_s=30.0,
)
def add_batch_jobs(request: ApiRequest[NoQuery, NewJobs]) -> ApiAnswer[BulkJobs]:
    """As POST /jobs/bulk, for members of the batch. Jobs without a priority have that of the batch."""
    priority = _report(request, is_change=True).priority or None
    jobs = (replace(new, batch_id=request.id, priority=new.priority or priority) for new in request.body.jobs)
    return enqueue_jobs(replace(request, body=NewJobs(tuple(jobs))))


@ROUTES.add("POST /batches/{id}/seal", (Scope.ENQUEUE, Scope.OPERATE), "close a batch to new jobs", serves_limited=True)
def seal_one_batch(request: ApiRequest[NoQuery, UnsetType]) -> BatchChange:
    """No job is added any more. An empty batch is finished by it."""
    _report(request, is_change=True)
    has_changed = request.services.transport.seal_batch(request.id)
    return BatchChange("Batch sealed" if has_changed else _why_unchanged(request), request.id, has_changed)


@ROUTES.add("POST /batches/{id}/cancel", Scope.OPERATE, "cancel its unfinished jobs", is_scan=True)
def cancel_one_batch(request: ApiRequest[NoQuery, UnsetType]) -> BatchChange:
    """`has_changed` is false if it is finished or was cancelled before."""
    services, id = request.services, request.id
    _report(request)
    has_changed = services.transport.cancel_batch(id)
    if has_changed:
        services.action_log.add(JobAction.CANCEL, request.caller.name, count=1, conditions={"batch": id})
    return BatchChange("Batch cancelled" if has_changed else _why_unchanged(request), id, has_changed)


def _why_unchanged(request: ApiRequest[NoQuery, UnsetType]) -> str:
    """Read after the attempt: the batch may have ended since the request arrived."""
    now = _report(request)
    if now.is_cancelled:
        return "Batch was already cancelled"
    return "Batch had already finished" if now.status == BatchState.FINISHED else "Batch was already sealed"


@ROUTES.add("POST /batches/{id}/retry", Scope.OPERATE, "return the dead members to their queues", is_scan=True)
def retry_one_batch(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[BatchRetry]:
    """Puts the dead members back into their queues. `left` says why others stay, by id."""
    services, id = request.services, request.id
    _report(request)
    done = services.transport.retry_batch(id)
    services.action_log.add(JobAction.RETRY, request.caller.name, count=done.count, conditions={"batch": id})
    return ApiAnswer(done, count=done.count)


@ROUTES.add("GET /batches/{id}/dead", Scope.READ, "the dead members of a batch", is_scan=True)
def list_dead_members(request: ApiRequest[MemberQuery, UnsetType]) -> DeadMembers:
    place, signer = f"{LIST}:dead:{request.id}", request.services.signer
    cursor = signer.read_cursor(place, request.query.cursor, str) or ""
    _report(request)
    page = request.services.transport.dead_page(request.id, cursor, is_outline=True)
    return DeadMembers(page.jobs, signer.cursor(place, page.next_cursor or ""))


def _callback(wanted: WantedCallback | None, caller: Caller) -> TaskCall[Any, Any] | None:
    if wanted is None:
        return None
    caller.check_type(wanted.type)
    if problems := [*tag_problems(wanted.tags)]:
        raise invalid(problems)
    given = {name: getattr(wanted, name) for name in ("priority", "max_retries", "timeout", "tags")}
    given["tags"] = {**(wanted.tags or {}), **caller.own_tags} or None
    options = cast(EnqueueOptions, {name: value for name, value in given.items() if value is not None})
    return TaskCall(wanted.type, wanted.payload, **options)


def _report(request: ApiRequest[Any, Any], *, is_change: bool = False) -> BatchDocument:
    """The batch that the path names. Raises ApiProblem for an unknown one, a name that none can have, and one that the
    caller does not see or, for a change, may not change."""
    id = checked_name("batch", request.id)
    try:
        if not (_sees(request, id) and (not is_change or _changes(request, id))):
            raise unknown_batch(id)
        return show_batch(request.broker, id)
    except BatchError as error:
        raise ApiProblem("not-found", str(error)) from error


def _sees(request: ApiRequest[Any, Any], id: str) -> bool:
    """A batch may have members of any kind: a limited caller sees its own."""
    return not request.caller.is_limited or _maker(request, id) == request.caller.id


def _changes(request: ApiRequest[Any, Any], id: str) -> bool:
    return request.caller.changes_all_batches or _maker(request, id) == request.caller.id


def _maker(request: ApiRequest[Any, Any], id: str) -> str:
    """The id of the key that created the batch; "" if that is not known."""
    [view] = request.broker.batches_by_id([id])
    return info_of(view.info).made_by if view is not None else ""
