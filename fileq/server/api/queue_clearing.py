"""Cancels what waits in a queue, as Client.clear() does: a bounded number of jobs with each request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType

from fileq.core.api_key import Scope
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, Route

CLEARED_MAX = 5_000  # jobs of one request


class ClearQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` jobs, those that leave the queue next."""

    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] = CLEARED_MAX


class ClearedJobs(Struct, frozen=True):
    """`is_partial`: the request has cancelled as many as one can; repeat it for the rest."""

    cleared: int
    is_partial: bool


def clear_queue(request: ApiRequest[ClearQuery, UnsetType]) -> ApiAnswer:
    services, name = request.services, request.params["name"]
    if name not in services.config.worker.priorities:
        names = ", ".join(services.config.worker.priorities)
        raise ApiProblem("not-found", f"no queue is named {name[:100]!r}; the queues are {names}")
    limit = min(request.query.limit, CLEARED_MAX)
    count = services.transport.clear(name, limit)
    return ApiAnswer(ClearedJobs(count, count == limit < request.query.limit), count=count)


ROUTES = (
    Route(
        method="POST",
        path="/queues/{name}/clear",
        area="queues",
        scopes=(Scope.OPERATE,),
        summary="cancel the jobs that wait in a queue",
        function=clear_queue,
        query=ClearQuery,
        response=ClearedJobs,
        is_scan=True,
    ),
)
