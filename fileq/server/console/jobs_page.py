"""Lists of jobs with their filters, and one job with everything that is known about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fileq.core.api_key import Scope
from fileq.server.api.job_conditions import JobConditions, conditions_in
from fileq.server.api.job_document import JobDocument
from fileq.server.api.job_endpoints import show_job
from fileq.server.api.job_lists import JobListQuery
from fileq.server.api.list_endpoints import list_jobs
from fileq.server.console.file_preview import may_see_content
from fileq.server.console.page import PageRequest
from fileq.server.console.rendering import path_part, seconds_between

STATES = ("pending", "scheduled", "running", "retrying", "completed", "dead", "cancelled")


class JobsQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """The conditions of a list, and its page. A form sends empty fields too; they mean no condition."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


def jobs(request: PageRequest) -> Mapping[str, Any]:
    query: JobsQuery = request.query
    conditions = conditions_in(query)
    given = msgspec.to_builtins(conditions)
    found = request.ask(
        list_jobs, JobListQuery(**msgspec.structs.asdict(conditions), limit=query.limit, cursor=query.cursor)
    )
    return {
        "found": found,
        "filter": given,
        "fields": conditions,
        "states": STATES,
        "queues": request.services.config.worker.priorities,
        "bulk": _bulk_actions(query.status),
        "may_operate": request.has(Scope.OPERATE),
    }


def _bulk_actions(status: str | None) -> list[str]:
    """The actions that make sense for all jobs of a list."""
    if status is None:
        return ["retry", "cancel"]
    return {"dead": ["retry", "delete"], "scheduled": ["run", "cancel"], "retrying": ["run", "cancel"]}.get(
        status, ["cancel"] if status in ("pending", "running") else []
    )


def job(request: PageRequest) -> Mapping[str, Any]:
    found = request.ask(show_job, id=request.params["id"])
    server = request.services.config.server
    address = f"http://{server.bind}:{server.port}{server.base_path}/api/v1/jobs/{path_part(found.id)}"
    return {
        "job": found,
        "steps": _steps(found),
        "may_operate": request.has(Scope.OPERATE),
        "may_preview": may_see_content(request),
        "curl": f'curl -H "X-API-Key: $KEY" {shlex.quote(address)}',
        "python": _python(found),
        "cli": f"fileq show {shlex.quote(found.id)}",
    }


def _steps(job: JobDocument) -> list[dict[str, Any]]:
    """The life of a job: each step with how long it lasted until the next one."""
    times = [("created", job.created_at), ("scheduled for", job.scheduled_at), ("started", job.started_at)]
    if job.is_finished:
        times.append((job.status, job.completed_at))
    known = sorted(((at, word) for word, at in times if at), key=lambda step: step[0])
    following = [at for at, _ in known[1:]]
    return [
        {"word": word, "at": at, "lasted_s": seconds_between(at, next_at)}
        for (at, word), next_at in zip(known, [*following, None], strict=True)
    ]


def _python(job: JobDocument) -> str:
    """Shows the job, as the other two do. A text of JSON is one of Python too."""
    return f"fileq.Client().job({json.dumps(job.id)}).status()"
