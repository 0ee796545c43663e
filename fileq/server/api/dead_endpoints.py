"""Dead jobs: list them, group them by their cause, put them back, delete them; acknowledge a group with a note."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.commands.acknowledgements import NOTE_LENGTH, Acknowledgement, AcknowledgementStore, is_fingerprint
from fileq.commands.audit_entries import short
from fileq.core.api_key import Scope
from fileq.core.job import State
from fileq.queries.dead_jobs import DeadGroups, GroupedBy, group_dead
from fileq.queries.job_filter import JobConditions, JobFilter
from fileq.server.api.action_endpoints import ACTS, ActionAnswer, JobChoice, OperationDocument, act, act_on_filter
from fileq.server.api.job_endpoints import JobList, JobListQuery, JobMessage, filter_of, list_page, seen_record
from fileq.server.decoding import invalid_at
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES = RouteList("dead jobs")

GROUPED_MAX = 7_500  # dead jobs that one request looks at: well below 50 ms of the broker's time


class DeadGroupsQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """The conditions of dead jobs, and what makes a group."""

    by: GroupedBy = "fingerprint"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class PurgeMessage(Struct, frozen=True, omit_defaults=True):
    """`operation` deletes them if they are more than 1,000."""

    message: str
    operation: OperationDocument | None = None


@ROUTES.add("GET /dead", Scope.READ, "dead jobs, the newest first", serves_limited=True, is_scan=True)
def list_dead(request: ApiRequest[JobListQuery, UnsetType]) -> JobList:
    """The newest first."""
    return list_page(request, "dead", _dead(request, request.query))


@ROUTES.add(
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


@ROUTES.add("POST /dead/retry", Scope.OPERATE, "put dead jobs back into their queues", **ACTS)
def retry_dead(request: ApiRequest[NoQuery, JobChoice]) -> ApiAnswer[ActionAnswer]:
    """As POST /jobs/actions with the action retry."""
    return act(request, JobAction.RETRY, request.body)


@ROUTES.add(
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
    answer = act_on_filter(request, JobAction.DELETE, wanted, {}, False, None)
    result = answer.content
    done = f"Purging {result.matched}" if result.operation is not None else f"Purged {result.done}"
    message = PurgeMessage(f"{done} dead jobs", result.operation)
    return ApiAnswer(message, answer.status, answer.headers, answer.count)


@ROUTES.add("DELETE /dead/{id}", Scope.OPERATE, "delete a dead job", serves_limited=True, problems=("conflict",))
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


@ROUTES.add("GET /dead/acknowledgements", Scope.READ, "acknowledged groups of dead jobs")
def list_acknowledgements(request: ApiRequest[NoQuery, UnsetType]) -> AcknowledgementList:
    found = _store(request).load().values()
    return AcknowledgementList(tuple(sorted(found, key=lambda one: one.at, reverse=True)))


@ROUTES.add(f"PUT {PATH}", Scope.OPERATE, "acknowledge a group of dead jobs, with a note")
def put_acknowledgement(request: ApiRequest[NoQuery, AcknowledgementNote]) -> Acknowledgement:
    """Replaces the one before. The group need not have jobs at the moment. The newest 1,000 are kept."""
    fingerprint, store = _fingerprint(request), _store(request)
    before = store.load().get(fingerprint)
    made = store.put(fingerprint, request.body.note, request.caller.name)
    request.note.changed(_facts(before), _facts(made))
    request.note.detail = short(request.body.cause)
    return made


@ROUTES.add(f"DELETE {PATH}", Scope.OPERATE, "remove the acknowledgement of a group of dead jobs")
def remove_acknowledgement(request: ApiRequest[NoQuery, UnsetType]) -> JobMessage:
    fingerprint, store = _fingerprint(request), _store(request)
    before = store.load().get(fingerprint)
    if not store.remove(fingerprint):
        raise ApiProblem("not-found", f"the group {fingerprint} is not acknowledged")
    request.note.changed(_facts(before), {})
    return JobMessage("Acknowledgement removed")


def _facts(known: Acknowledgement | None) -> dict[str, str]:
    if known is None:
        return {}
    return {"note": known.note, "covers deaths until": known.at.replace("T", " ").replace("Z", " UTC")}


def _store(request: ApiRequest[NoQuery, Any]) -> AcknowledgementStore:
    return AcknowledgementStore(request.broker, request.services.now_ms)


def _fingerprint(request: ApiRequest[NoQuery, Any]) -> str:
    fingerprint = request.params["fingerprint"]
    if not is_fingerprint(fingerprint):
        detail = f"{fingerprint[:100]!r} is not a fingerprint; GET /dead/groups shows them, with 12 hexadecimal digits"
        raise ApiProblem("not-found", detail)
    return fingerprint
