"""One job: enqueue it, look at it, wait for it, cancel it, retry it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType

from fileq.actions.bulk import JobAction
from fileq.brokers.catalog import NAME_RULE
from fileq.brokers.types import CancelResult, Record
from fileq.client.client import span_of_caller
from fileq.client.handle import Handle
from fileq.client.options import EnqueueOptions
from fileq.client.transport import VETOED
from fileq.core.api_key import Scope, has_parent_parts
from fileq.core.job import OWN_TAGS, State, decode_or_none
from fileq.core.units import LONGEST_S
from fileq.queries.documents import EnqueuedDocument, JobDocument, enqueued_document, info_of, job_document
from fileq.queries.job_ids import why_unknown
from fileq.queries.job_queries import wait_reasons
from fileq.server.conditional import IdempotentRequest, idempotent_request
from fileq.server.connections import until_first, until_gone
from fileq.server.decoding import invalid
from fileq.server.identity import Caller
from fileq.server.problems import ApiProblem, FieldProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES = RouteList("jobs")

COMMAND_TYPE = "command"
DIGEST_TAG = "fileq.request_digest"
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
    statuses={200: "a job with this id or unique key is there already: that one"},
    problems=("idempotency-mismatch", "vetoed", "not-allowed", "batch-closed", "duplicate"),
    has_idempotency_key=True,
)
def enqueue_job(request: ApiRequest[NoQuery, NewJob]) -> ApiAnswer[EnqueuedDocument]:
    """201 with the job, also for a repeat with the same Idempotency-Key; 200 if a job with this id or unique key was
    there already. If the key does not see that job, the problem `duplicate` says only that there is one."""
    new, services = request.body, request.services
    repeat = idempotent_request(request.headers, request.caller, request.raw_body, request.services.signer)
    options = job_options(new, repeat, request.caller)
    check_batches(request, [new])
    with span_of_caller(request.headers.get("traceparent", "")):
        handle = _enqueued(request, new, options)
    if handle.fate == VETOED:
        raise ApiProblem("vetoed", "a function with @fileq.before_enqueue refused the job")
    [record] = services.broker.records([handle.id])
    if handle.fate != "enqueued" and not request.caller.sees(decode_or_none(record.raw) if record else None):
        raise ApiProblem("duplicate", "a job with this id or unique key is there already, and this key does not see it")
    if record is None:
        raise ApiProblem("not-found", why_unknown(handle.id))
    if handle.fate != "enqueued":
        _check_repeat(record, repeat)
    request.note.about(record)
    document = enqueued_document(record, handle.warning)
    is_new = handle.fate == "enqueued" or repeat is not None
    location = {"Location": f"{services.config.server.base_path}/api/v1/jobs/{quote(document.id, safe='')}"}
    return ApiAnswer(document, 201 if is_new else 200, location)


def _enqueued(request: ApiRequest[NoQuery, NewJob], new: NewJob, options: EnqueueOptions) -> Handle[Any]:
    given = [name for name in ("type", "path", "command") if getattr(new, name) is not None]
    if len(given) != 1:
        detail = "give one of type, path and command" + (f", not {' and '.join(given)}" if given else "")
        raise invalid([FieldProblem("", detail)])
    client = request.services.client
    if new.path is not None:
        request.caller.check_path(new.path)
        if not isinstance(new.payload, UnsetType):
            raise invalid([FieldProblem("/payload", "payload goes with type; the job of a file has none")])
        return client.enqueue_file(new.path, **options)
    if new.command is not None:
        request.caller.check_type(COMMAND_TYPE)
        return client.enqueue(COMMAND_TYPE, {"command": new.command}, **options)
    assert new.type is not None
    request.caller.check_type(new.type)
    return client.enqueue(new.type, new.payload, **options)


def check_batches(request: ApiRequest[Any, Any], jobs: Iterable[NewJob]) -> None:
    """Raises ApiProblem for a batch that the caller may not add to, as if there were none."""
    ids = {} if request.caller.changes_all_batches else {new.batch_id: None for new in jobs if new.batch_id}
    if not ids:
        return
    for id, view in zip(ids, request.services.broker.batches_by_id(list(ids)), strict=True):
        if view is not None and not request.caller.changes_batch(info_of(view.info).made_by):
            raise ApiProblem("batch-closed", f"batch {id} takes no jobs any more, or does not exist")


def job_options(new: NewJob, repeat: IdempotentRequest | None, caller: Caller) -> EnqueueOptions:
    check_given(new.path, new.tags)
    if repeat is not None and new.id is not None:
        raise invalid([FieldProblem("/id", "id is set, and Idempotency-Key too, which makes the id; give one")])
    digest = {DIGEST_TAG: repeat.digest} if repeat is not None else {}
    given: dict[str, Any] = {
        "priority": new.priority,
        "max_retries": new.max_retries,
        "timeout": new.timeout,
        "delay": new.delay,
        "at": new.scheduled_at,
        "id": repeat.job_id if repeat is not None else new.id,
        "unique_key": new.unique_key,
        "deadline": _deadline(new.deadline),
        "batch": new.batch_id,
        "tags": {**(new.tags or {}), **digest, **caller.own_tags} or None,
    }
    return cast(EnqueueOptions, {name: value for name, value in given.items() if value is not None})


def check_given(path: str | None, tags: Mapping[str, str] | None) -> None:
    """Raises ApiProblem for what a server takes from no client: a path with `..`, whose meaning depends on links, and
    tags that the server itself adds."""
    problems = []
    if path is not None and has_parent_parts(os.fsencode(path)):
        problems.append(FieldProblem("/path", f"path is {path[:100]!r}; it must have no .. in it"))
    for name in tags or ():
        if name.startswith(OWN_TAGS):
            problems.append(FieldProblem("/tags", f"the tag {name[:100]!r} begins with {OWN_TAGS}; choose another"))
    if problems:
        raise invalid(problems)


def _deadline(given: float | str | None) -> float | str | datetime | None:
    if isinstance(given, str) and given[:4].isdigit() and "-" in given:
        try:
            return datetime.fromisoformat(given)
        except ValueError:
            return given
    return given


def _check_repeat(record: Record, repeat: IdempotentRequest | None) -> None:
    """Raises ApiProblem if the Idempotency-Key was used with another body."""
    job = decode_or_none(record.raw)
    if repeat is None or job is None or job.id != repeat.job_id:
        return
    if job.tag_values.get(DIGEST_TAG) != repeat.digest:
        detail = f"Idempotency-Key was used with another body, for job {job.id}"
        raise ApiProblem("idempotency-mismatch", detail)


@ROUTES.add(
    "GET /jobs/{id}", (Scope.READ, Scope.ENQUEUE), "everything known about a job", serves_limited=True, has_etag=True
)
def show_job(request: ApiRequest[NoQuery, UnsetType]) -> JobDocument:
    services = request.services
    record = seen_record(request, request.params["id"])
    waits_for = wait_reasons(services.broker, [record]).get(record.id, ())
    return job_document(record, waits_for)


@ROUTES.add(
    "GET /jobs/{id}/wait",
    (Scope.READ, Scope.ENQUEUE),
    "wait until a job has ended",
    serves_limited=True,
    statuses={202: "the job has not ended yet"},
)
async def wait_for_job(request: ApiRequest[WaitQuery, UnsetType]) -> ApiAnswer[JobDocument]:
    """200 once the job has ended, 202 with its present state after the timeout."""
    services, id = request.services, request.params["id"]

    def read() -> JobDocument:
        return job_document(seen_record(request, id))

    document = await services.pool.call(read)
    if not document.is_finished and request.query.timeout:
        waiting = services.waits.until_ended(id, request.query.timeout, request.caller.id)
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
    id, services = request.params["id"], request.services
    if request.caller.is_limited:
        seen_record(request, id)
    result = services.transport.cancel(id)
    [record] = services.broker.records([id])
    if record is not None:
        request.note.about(record)
    if result is CancelResult.UNKNOWN:
        raise ApiProblem("not-found", why_unknown(id))
    if result is CancelResult.ENDED:
        if record is not None and record.state is not State.CANCELLED:
            raise ApiProblem("conflict", f"job {id} can't be cancelled: it is {record.state.value}")
        return ApiAnswer(CancelMessage("Job cancelled", "ended"))  # a repeat
    if result is CancelResult.REQUESTED_BEFORE:
        return ApiAnswer(CancelMessage("Job cancellation requested", "requested"), 202)
    services.action_log.add(JobAction.CANCEL, request.caller.name, [id])
    is_requested = result is CancelResult.REQUESTED
    request.note.changed(
        {"state": "running" if is_requested else "waiting"},
        {"state": "cancellation requested" if is_requested else "cancelled"},
    )
    if is_requested:
        return ApiAnswer(CancelMessage("Job cancellation requested", "requested"), 202)
    return ApiAnswer(CancelMessage("Job cancelled", "cancelled"))


@ROUTES.add(
    "POST /jobs/{id}/retry",
    Scope.OPERATE,
    "put a dead job back into its queue",
    serves_limited=True,
    problems=("conflict",),
)
def retry_job(request: ApiRequest[RetryQuery, UnsetType]) -> RetryMessage:
    id = request.params["id"]
    request.note.about(seen_record(request, id))
    request.note.detail = "as a probe" if request.query.probe else ""
    request.services.transport.retry(id, is_probe=request.query.probe)
    request.services.action_log.add(JobAction.RETRY, request.caller.name, [id])
    return RetryMessage("Job re-enqueued", State.PENDING.value)


def seen_record(request: ApiRequest[Any, Any], id: str) -> Record:
    """The record of a job. Raises ApiProblem if the job is unknown, or is none that the caller sees."""
    [record] = request.services.broker.records([id])
    if record is None or not request.caller.sees(decode_or_none(record.raw)):
        raise ApiProblem("not-found", why_unknown(id))
    return record
