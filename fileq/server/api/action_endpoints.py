"""Actions on many jobs, the operations that do them, and dead jobs.

POST /jobs/actions and the endpoints of dead jobs share act(): count first, then act at once or by an operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.actions.bulk import JobAction, JobChange
from fileq.commands.acknowledgements import (
    ACKNOWLEDGEMENTS,
    NOTE_LENGTH,
    Acknowledgement,
    acknowledge_group,
    is_fingerprint,
)
from fileq.commands.audit_entries import short
from fileq.core.api_key import Scope
from fileq.core.errors import ConfigError
from fileq.core.fingerprint import common_words
from fileq.core.job import State, stamp
from fileq.queries.dead_jobs import DeadGroups, GroupedBy, group_dead
from fileq.queries.documents import JobDocument
from fileq.queries.job_filter import JobConditions, JobFilter, StoredJob
from fileq.server.api.job_endpoints import JobList, JobListQuery, JobMessage, filter_of, list_page, seen_record
from fileq.server.operations import Operation
from fileq.server.problems import ApiProblem, invalid_at
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES, DEAD = RouteList("actions"), RouteList("dead jobs")

AT_ONCE_MAX = 1000  # jobs that a request changes itself
SAMPLE = 5
JobId = Annotated[str, Meta(min_length=1, max_length=500)]


class JobChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: a `filter`, or `ids`. With `dry_run`, which is the default, they are only counted. A filter without
    `dry_run` needs `expect`, the number that the dry run answered; with more than 1 % more it is refused."""

    filter: JobConditions | None = None
    ids: Annotated[tuple[JobId, ...], Meta(min_length=1, max_length=AT_ONCE_MAX)] | None = None
    dry_run: bool = True
    expect: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None


class OperationDocument(Struct, frozen=True):
    """`state` is waiting, running, completed, stopped or failed. `done` of the `matched` jobs are changed; `refused`
    could not be, in the last pass. `takeovers`: how often another server went on with it."""

    id: str
    action: JobAction
    filter: dict[str, Any]
    state: str
    matched: int
    done: int
    refused: int
    created_at: str | None
    created_by: str
    updated_at: str | None
    ended_at: str | None
    error: str | None
    takeovers: int


class RefusedJob(Struct, frozen=True):
    id: str
    reason: str


class ActionAnswer(Struct, frozen=True):
    """`matched` jobs are meant; `is_partial`: at least so many. A dry run has a `sample` of them. Otherwise `done` were
    changed and `refused` were not, or an `operation` changes them. /dashboard/admin/operations/`action_id` shows what
    became of them; null if none was changed."""

    action: JobAction
    dry_run: bool
    matched: int
    is_partial: bool
    sample: tuple[JobDocument, ...]
    done: int
    refused: tuple[RefusedJob, ...]
    operation: OperationDocument | None
    action_id: str | None = None


def act(request: ApiRequest[Any, Any], action: JobAction) -> ApiAnswer[ActionAnswer]:
    """What the body, a JobChoice, asks for: 200, or 202 with an operation. Raises ApiProblem."""
    choice: JobChoice = request.body
    request.note.is_dry_run = choice.dry_run
    if (choice.filter is None) is (choice.ids is None):
        raise invalid_at("", "give a filter or ids; a filter without conditions means all jobs")
    if choice.ids is not None:
        return _act_on_ids(request, action, choice, choice.ids)
    assert choice.filter is not None
    wanted = filter_of(request, choice.filter, at="/filter/")
    try:
        wanted.states(action.states, action.rule)
    except ConfigError as error:
        raise invalid_at("/filter/status", str(error)) from error
    if not choice.dry_run and choice.expect is None:
        raise invalid_at("/expect", "expect is missing; give the number that the dry run answered as matched")
    return act_on_filter(request, action, wanted, choice)


def act_on_filter(
    request: ApiRequest[Any, Any], action: JobAction, wanted: JobFilter, choice: JobChoice
) -> ApiAnswer[ActionAnswer]:
    """`wanted` is what the choice's filter means; without one it may be all jobs that the caller sees."""
    services, actions, expect = request.services, request.services.actions, choice.expect
    conditions = msgspec.to_builtins(choice.filter) if choice.filter is not None else {}
    request.note.chose({"action": action.value} | (conditions or {"jobs": "all"}))
    cutoff_ms = actions.now_ms()  # before the count: what comes later is neither counted nor changed
    matched = actions.matched(action, wanted, SAMPLE if choice.dry_run else 1)
    if choice.dry_run:
        return _answer(request, action, matched.count, sample=matched.sample, is_partial=matched.is_partial)
    if expect is not None and matched.count > expect + expect // 100:
        detail = f"{matched.count} jobs match, and {expect} were expected; repeat the dry run"
        raise ApiProblem("count-changed", detail)
    if matched.count <= AT_ONCE_MAX and not matched.is_partial:
        run = actions.begin(action, actions.matching(action, wanted), cutoff_ms=cutoff_ms)
        run.complete()
        cause = _cause_of(matched.sample) if "fingerprint" in conditions else ""
        if cause:
            request.note.chose({"action": action.value} | conditions | {"cause": cause})
        _log(request, action, run.named, count=run.count, refused=run.refused, conditions=conditions, cause=cause)
        return _answer(request, action, matched.count, done=run.count, refused=run.refusals)
    operation = services.operations.create(
        action, wanted, conditions, matched=matched.count, cutoff_ms=cutoff_ms, created_by=request.caller.name
    )
    services.operation_runner.wake.set()
    request.note.action_id = operation.id
    return _answer(request, action, matched.count, operation=operation)


def _cause_of(sample: tuple[StoredJob, ...]) -> str:
    """What the errors of jobs with the same fingerprint say, in few words; "" if it is not known."""
    if not sample or not sample[0].error:
        return ""
    error, job = sample[0].error, sample[0].job
    return short(common_words(error, job.filepath if job is not None else "") or error.strip().partition("\n")[0])


def _log(request: ApiRequest[Any, Any], action: JobAction, changed: Sequence[JobChange], **more: Any) -> None:
    """`more` is what ActionLog.add() takes."""
    log, ids = request.services.action_log, [change.id for change in changed]
    request.note.action_id = log.add(action, request.caller.name, ids, **more)


def _act_on_ids(
    request: ApiRequest[Any, Any], action: JobAction, choice: JobChoice, ids: tuple[str, ...]
) -> ApiAnswer[ActionAnswer]:
    actions, chosen = request.services.actions, ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
    request.note.chose({"action": action.value, "ids": chosen})
    jobs, left = actions.by_ids(action, ids, request.caller.sees)
    if choice.expect is not None and len(jobs) > choice.expect + choice.expect // 100:
        raise ApiProblem("count-changed", f"{len(jobs)} jobs match, and {choice.expect} were expected")
    if choice.dry_run:
        return _answer(request, action, len(jobs), sample=tuple(jobs[:SAMPLE]), refused=left)
    changes = actions.change(action, jobs)
    refused = [*left, *(change for change in changes if not change.is_done)]
    changed = [change for change in changes if change.is_done]
    _log(request, action, changed, count=len(changed), refused=len(refused))
    return _answer(request, action, len(jobs), done=len(changed), refused=refused)


def _answer(
    request: ApiRequest[Any, Any],
    action: JobAction,
    matched: int,
    *,
    sample: tuple[StoredJob, ...] = (),
    is_partial: bool = False,
    done: int | None = None,
    refused: Sequence[JobChange] = (),
    operation: Operation | None = None,
) -> ApiAnswer[ActionAnswer]:
    """A dry run if nothing was `done` and there is no operation."""
    document = ActionAnswer(
        action=action,
        dry_run=done is None and operation is None,
        matched=matched,
        is_partial=is_partial,
        sample=tuple(stored.document() for stored in sample),
        done=done or 0,
        refused=tuple(RefusedJob(one.id, one.reason) for one in refused),
        operation=operation_document(operation) if operation is not None else None,
        action_id=request.note.action_id or None,
    )
    if operation is None:
        return ApiAnswer(document, 200, count=document.done)
    location = {"Location": f"{request.config.server.base_path}/api/v1/operations/{operation.id}"}
    return ApiAnswer(document, 202, location, count=matched)


def operation_document(operation: Operation) -> OperationDocument:
    same = ("id", "action", "state", "matched", "done", "refused", "created_by", "takeovers")
    return OperationDocument(
        filter=operation.conditions,
        created_at=stamp(operation.created_ms),
        updated_at=stamp(operation.updated_ms),
        ended_at=stamp(operation.ended_ms),
        error=operation.error or None,
        **{name: getattr(operation, name) for name in same},
    )


# An endpoint that does what act() does.
ACTS: Mapping[str, Any] = {
    "serves_limited": True,
    "statuses": {202: "more than 1,000 jobs: an operation changes them"},
    "problems": ("count-changed", "conflict"),
    "is_scan": True,
    "timeout_s": 60.0,  # a dry run may look at every job
}


class WantedAction(JobChoice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An action on many jobs. retry: dead jobs; cancel: jobs that have not ended; run: jobs that wait for their time;
    delete: dead jobs."""

    action: JobAction


class OperationList(Struct, frozen=True):
    """The newest first. Ended ones are kept, the last 100 of them."""

    operations: tuple[OperationDocument, ...]


@ROUTES.add("POST /jobs/actions", Scope.OPERATE, "retry, cancel, run or delete many jobs", **ACTS)
def act_on_jobs(request: ApiRequest[NoQuery, WantedAction]) -> ApiAnswer[ActionAnswer]:
    """A dry run answers how many jobs match, and some of them. Then the same with `"dry_run": false` and `expect`.
    Up to 1,000 jobs are changed at once; for more the answer is 202 with an operation."""
    return act(request, request.body.action)


@ROUTES.add("GET /operations", Scope.READ, "list operations with their progress", serves_limited=True)
def list_operations(request: ApiRequest[NoQuery, UnsetType]) -> OperationList:
    found = request.services.operations.all()
    return OperationList(tuple(operation_document(one) for one in found if _sees(request, one)))


@ROUTES.add("GET /operations/{id}", Scope.READ, "the progress of an operation", serves_limited=True, has_etag=True)
def show_operation(request: ApiRequest[NoQuery, UnsetType]) -> OperationDocument:
    return operation_document(_seen(request))


@ROUTES.add("DELETE /operations/{id}", Scope.OPERATE, "stop an operation", serves_limited=True)
def stop_operation(request: ApiRequest[NoQuery, UnsetType]) -> OperationDocument:
    """Jobs that are changed already stay changed. An operation that has ended stays as it is."""
    _seen(request)
    stopped = request.services.operations.stop(request.id)
    return operation_document(stopped or _seen(request))


def _seen(request: ApiRequest[NoQuery, UnsetType]) -> Operation:
    found = request.services.operations.get(request.id)
    if found is None or not _sees(request, found):
        raise ApiProblem("not-found", f"no operation has the id {request.id[:100]!r}; GET /operations lists them")
    return found


def _sees(request: ApiRequest[NoQuery, UnsetType], operation: Operation) -> bool:
    """A key with a restriction sees the operations on the jobs that it is for."""
    return not request.caller.is_limited or operation.wanted.only == request.caller.restriction


# Dead jobs: list them, group them by their cause, put them back, delete them; acknowledge a group with a note.

GROUPED_MAX = 7_500  # dead jobs that one request looks at: well below 50 ms of the broker's time


class DeadGroupsQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """The conditions of dead jobs, and what makes a group."""

    by: GroupedBy = "fingerprint"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class PurgeMessage(Struct, frozen=True, omit_defaults=True):
    """`operation` deletes them if they are more than 1,000."""

    message: str
    operation: OperationDocument | None = None


@DEAD.add("GET /dead", Scope.READ, "dead jobs, newest first", serves_limited=True, is_scan=True)
def list_dead(request: ApiRequest[JobListQuery, UnsetType]) -> JobList:
    """The newest first."""
    return list_page(request, "dead", _dead(request, request.query))


@DEAD.add(
    "GET /dead/groups",
    Scope.READ,
    "dead jobs grouped by their cause, directory, kind of error or type",
    serves_limited=True,
    is_scan=True,
)
def show_dead_groups(request: ApiRequest[DeadGroupsQuery, UnsetType]) -> DeadGroups:
    """Looks at the newest 7,500 dead jobs. The largest group is first."""
    return dead_groups(request, request.query, GROUPED_MAX)


def dead_groups(request: ApiRequest[Any, Any], query: DeadGroupsQuery, scan_max: int) -> DeadGroups:
    """As show_dead_groups(), among the newest `scan_max`."""
    wanted = _dead(request, query)
    groups = group_dead(request.broker, wanted, query.by, limit=query.limit, scan_max=scan_max)
    return replace(groups, groups=()) if request.services.hides_paths and query.by == "directory" else groups


def _dead(request: ApiRequest[Any, Any], query: JobConditions) -> JobFilter:
    if query.status not in (None, "dead"):
        raise invalid_at("?status", f"status is {query.status!r}; here it can only be dead")
    return replace(filter_of(request, query), state=State.DEAD)


@DEAD.add("POST /dead/retry", Scope.OPERATE, "return dead jobs to their queues", **ACTS)
def retry_dead(request: ApiRequest[NoQuery, JobChoice]) -> ApiAnswer[ActionAnswer]:
    """As POST /jobs/actions with the action retry."""
    return act(request, JobAction.RETRY)


@DEAD.add(
    "DELETE /dead",
    Scope.OPERATE,
    "delete all dead jobs",
    serves_limited=True,
    statuses={202: "more than 1,000 jobs: an operation deletes them"},
    problems=("conflict",),
    is_scan=True,
)
def purge_dead(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[PurgeMessage]:
    """Deletes every job that is dead now. More than 1,000 are deleted by an operation."""
    wanted = JobFilter(only=request.caller.restriction or None)
    answer = act_on_filter(request, JobAction.DELETE, wanted, JobChoice(dry_run=False))
    result = answer.content
    done = f"Purging {result.matched}" if result.operation is not None else f"Purged {result.done}"
    message = PurgeMessage(f"{done} dead {'job' if result.done == 1 else 'jobs'}", result.operation)
    return ApiAnswer(message, answer.status, answer.headers, answer.count)


@DEAD.add("DELETE /dead/{id}", Scope.OPERATE, "delete a dead job", serves_limited=True, problems=("conflict",))
def delete_dead(request: ApiRequest[NoQuery, UnsetType]) -> JobMessage:
    id, record = request.id, seen_record(request)
    request.note.about(record)
    if record.state is not State.DEAD:
        raise ApiProblem("conflict", f"job {id} can't be deleted: it is {record.state.value}, not dead")
    if not request.services.actions.act_on(JobAction.DELETE, [id]).count:
        raise ApiProblem("not-found", f"job {id} left the dead-letter queue a moment ago")
    return JobMessage("Dead job deleted")


PATH = "/dead/groups/{fingerprint}/acknowledgement"


class AcknowledgementList(Struct, frozen=True):
    """The newest first. A group in which a job died after `at` has come back."""

    acknowledgements: tuple[Acknowledgement, ...]


class AcknowledgementNote(Struct, frozen=True, forbid_unknown_fields=True):
    """`cause` is what people call the group, such as the first line of its error. Only the audit keeps it."""

    note: Annotated[str, Meta(max_length=NOTE_LENGTH)] = ""
    cause: Annotated[str, Meta(max_length=500)] = ""


@DEAD.add("GET /dead/acknowledgements", Scope.READ, "acknowledged groups of dead jobs")
def list_acknowledgements(request: ApiRequest[NoQuery, UnsetType]) -> AcknowledgementList:
    found = ACKNOWLEDGEMENTS.all(request.broker).values()
    return AcknowledgementList(tuple(sorted(found, key=lambda one: one.at, reverse=True)))


@DEAD.add(f"PUT {PATH}", Scope.OPERATE, "acknowledge a group of dead jobs, with a note")
def put_acknowledgement(request: ApiRequest[NoQuery, AcknowledgementNote]) -> Acknowledgement:
    """Replaces the one before. The group need not have jobs at the moment. The newest 1,000 are kept."""
    fingerprint, now_ms = _fingerprint(request), request.services.now_ms()
    before = ACKNOWLEDGEMENTS.get(request.broker, fingerprint)
    made = acknowledge_group(request.broker, fingerprint, request.body.note, request.caller.name, now_ms)
    request.note.changed(_facts(before), _facts(made))
    request.note.detail = short(request.body.cause)
    return made


@DEAD.add(f"DELETE {PATH}", Scope.OPERATE, "remove the acknowledgement of a group of dead jobs")
def remove_acknowledgement(request: ApiRequest[NoQuery, UnsetType]) -> JobMessage:
    fingerprint = _fingerprint(request)
    before = ACKNOWLEDGEMENTS.get(request.broker, fingerprint)
    if not ACKNOWLEDGEMENTS.remove(request.broker, fingerprint):
        raise ApiProblem("not-found", f"the group {fingerprint} is not acknowledged")
    request.note.changed(_facts(before), {})
    return JobMessage("Acknowledgement removed")


def _facts(known: Acknowledgement | None) -> dict[str, str]:
    if known is None:
        return {}
    return {"note": known.note, "covers deaths until": known.at.replace("T", " ").replace("Z", " UTC")}


def _fingerprint(request: ApiRequest[NoQuery, Any]) -> str:
    fingerprint = request.params["fingerprint"]
    if not is_fingerprint(fingerprint):
        detail = f"{fingerprint[:100]!r} is not a fingerprint; GET /dead/groups shows them, with 12 hexadecimal digits"
        raise ApiProblem("not-found", detail)
    return fingerprint
