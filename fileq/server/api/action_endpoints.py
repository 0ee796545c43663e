"""Actions on many jobs, and the operations that do them."""

from __future__ import annotations

from msgspec import Struct, UnsetType

from fileq.commands.bulk_actions import JobAction
from fileq.commands.operations import Operation
from fileq.core.api_key import Scope
from fileq.server.api.bulk_answers import ActionAnswer, JobChoice, OperationDocument, act, operation_document
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, Route

COUNT_S = 60.0  # a dry run may look at every job


class WantedAction(JobChoice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An action on many jobs. retry: dead jobs; cancel: jobs that have not ended; run: jobs that wait for their time;
    delete: dead jobs."""

    action: JobAction


class OperationList(Struct, frozen=True):
    """The newest first. Ended ones are kept, the last 100 of them."""

    operations: tuple[OperationDocument, ...]


def act_on_jobs(request: ApiRequest[NoQuery, WantedAction]) -> ApiAnswer:
    """A dry run answers how many jobs match, and some of them. Then the same with `"dry_run": false` and `expect`.
    Up to 1,000 jobs are changed at once; for more the answer is 202 with an operation."""
    return act(request, request.body.action, request.body)


def list_operations(request: ApiRequest[NoQuery, UnsetType]) -> OperationList:
    found = (one.operation for one in request.services.operations.all())
    return OperationList(tuple(operation_document(one) for one in found if _sees(request, one)))


def show_operation(request: ApiRequest[NoQuery, UnsetType]) -> OperationDocument:
    id = request.params["id"]
    return operation_document(_seen(request, id))


def stop_operation(request: ApiRequest[NoQuery, UnsetType]) -> OperationDocument:
    """Jobs that are changed already stay changed. An operation that has ended stays as it is."""
    id = request.params["id"]
    _seen(request, id)
    stopped = request.services.operations.stop(id)
    if stopped is None:
        raise _unknown(id)
    return operation_document(stopped)


def _seen(request: ApiRequest[NoQuery, UnsetType], id: str) -> Operation:
    stored = request.services.operations.get(id)
    if stored is None or not _sees(request, stored.operation):
        raise _unknown(id)
    return stored.operation


def _sees(request: ApiRequest[NoQuery, UnsetType], operation: Operation) -> bool:
    """A key with a restriction sees the operations on the jobs that it is for."""
    return not request.caller.is_limited or operation.wanted.only == request.caller.restriction


def _unknown(id: str) -> ApiProblem:
    return ApiProblem("not-found", f"no operation has the id {id[:100]!r}; GET /operations lists them")


ROUTES = (
    Route(
        method="POST",
        path="/jobs/actions",
        area="actions",
        scopes=(Scope.OPERATE,),
        summary="retry, cancel, run or delete many jobs",
        function=act_on_jobs,
        serves_limited=True,
        body=WantedAction,
        response=ActionAnswer,
        statuses={202: "more than 1,000 jobs: an operation changes them"},
        problems=("count-changed", "conflict"),
        is_scan=True,
        timeout_s=COUNT_S,
    ),
    Route(
        method="GET",
        path="/operations",
        area="actions",
        scopes=(Scope.READ,),
        summary="operations and their progress",
        function=list_operations,
        serves_limited=True,
        response=OperationList,
    ),
    Route(
        method="GET",
        path="/operations/{id}",
        area="actions",
        scopes=(Scope.READ,),
        summary="the progress of an operation",
        function=show_operation,
        serves_limited=True,
        response=OperationDocument,
        has_etag=True,
    ),
    Route(
        method="DELETE",
        path="/operations/{id}",
        area="actions",
        scopes=(Scope.OPERATE,),
        summary="stop an operation",
        function=stop_operation,
        serves_limited=True,
        response=OperationDocument,
    ),
)
