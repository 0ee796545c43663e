"""Lists of jobs with their filters, and one job with everything that is known about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS
from fileq.commands.action_log import ACTIONS
from fileq.commands.admin.pauses import HISTORIES, NOTES
from fileq.core.job import DELAYED_STATES
from fileq.core.schedule import schedule_of
from fileq.queries.documents import JobDocument, batch_document
from fileq.queries.job_filter import conditions_in
from fileq.server.api.job_endpoints import JobListQuery, list_page, show_job
from fileq.server.console.dead_view import address_of
from fileq.server.console.file_views import may_see_content
from fileq.server.console.job_steps import (
    attempts_text,
    deferred_times,
    paused_of,
    reasons_of,
    steps_of,
    waits_in,
    what_then,
)
from fileq.server.console.operation_views import recent_action
from fileq.server.console.rendering import path_part
from fileq.server.console.view import ViewList, ViewRequest, mark_of_death, read_notes
from fileq.server.route import NoQuery

VIEWS = ViewList()

LOOKED_AT = 7_500  # elements that one view looks at, so that it is there within 100 ms
STATES = ("pending", "scheduled", "running", "retrying", "deferred", "completed", "dead", "cancelled")
_OTHER_WORDS = {"processing": "running", "failed": "retrying"}
_FIELDS = ("status", "q", "queue", "type", "match", "error", "since")  # of the form


class JobsQuery(JobListQuery, frozen=True, forbid_unknown_fields=True):
    """A form sends empty fields too; they mean no condition."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class OtherCondition(Struct, frozen=True):
    """A condition that no field of the form shows. `others` are the parameters of the list without it."""

    name: str
    value: str
    shown: str
    others: dict[str, str]


@VIEWS.add("/jobs", "Jobs", "jobs.html", is_scan=True, letter="j")
def jobs(request: ViewRequest[JobsQuery]) -> Mapping[str, Any]:
    """One scan, a round trip for the latest action and one for the name of a batch."""
    query = request.query
    given = msgspec.to_builtins(conditions_in(query))
    address = address_of(given)
    found = request.shown(list_page(request, "jobs", scan_max=LOOKED_AT))
    return {
        "recent": recent_action(request, request.services.action_log.all(), given),
        "found": replace(found, jobs=longest_first(found.jobs)),
        "filter": given,
        "address": address,
        "other_conditions": _other_conditions(request, address),
        "status": _OTHER_WORDS.get(query.status or "", query.status),
        "states": STATES,
        "bulk": _bulk_actions(query.status),
    }


def longest_first(jobs: Sequence[JobDocument]) -> tuple[JobDocument, ...]:
    """Running jobs are before all others; among them the longest running one is first."""
    is_running = [job for job in jobs if job.status == "running"]
    others = [job for job in jobs if job.status != "running"]
    return (*sorted(is_running, key=lambda job: job.started_at or ""), *others)


def _other_conditions(request: ViewRequest[Any], address: Mapping[str, str]) -> list[OtherCondition]:
    found = []
    for name, value in address.items():
        if name not in _FIELDS:
            shown = _batch_name(request, value) if name == "batch" else value
            others = {other: kept for other, kept in address.items() if other != name}
            found.append(OtherCondition(name, value, shown, others))
    return found


def _batch_name(request: ViewRequest[Any], id: str) -> str:
    """Its id if it has no name, or is unknown."""
    [view] = request.broker.batches_by_id([id])
    return request.shown(batch_document(view)).name or id if view is not None else id


def _bulk_actions(status: str | None) -> list[str]:
    """The actions that make sense for all jobs of a list. Without a status each job allows others of them; the
    stylesheet shows those that a selected row allows."""
    if status is None:
        return ["retry", "run", "delete", "cancel"]
    is_delayed = status in (*DELAYED_STATES, "failed")
    if is_delayed or status == "dead":
        return ["run", "cancel"] if is_delayed else ["retry", "delete"]
    return ["cancel"] if status in ("pending", "running", "processing") else []


@VIEWS.add("/jobs/{id:path}", "Job", "job.html")
def job(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """At most three round trips: the job, why it waits, and the notes of people."""
    found = request.ask(show_job)
    notes = read_notes(request, (ACTIONS, NOTES, HISTORIES, *([ACKNOWLEDGEMENTS] if found.fingerprint else [])))
    server = request.config.server
    address = f"http://{server.bind}:{server.port}{server.base_path}/api/v1/jobs/{path_part(found.id)}"
    return {
        "job": found,
        "steps": steps_of(found, notes.actions, notes.past_pauses),
        "attempts": attempts_text(found),
        "deferred": deferred_times(found),
        "reasons": reasons_of(found),
        "what_then": what_then(found.deferred),
        "paused": paused_of(found),
        "pause_note": notes.pauses.get(found.queue),
        "schedule": schedule_of(found.id),
        "worker_timeout_s": request.config.worker.timeout,
        "waits": waits_in(found),
        "mark": mark_of_death(found.fingerprint, found.completed_at, notes.acknowledgements),
        "may_preview": may_see_content(request),
        "curl": f'curl -H "X-API-Key: $KEY" {shlex.quote(address)}',
        "python": f"fileq.Client().job({json.dumps(found.id)}).status()",  # a text of JSON is one of Python too
        "cli": f"fileq show {'-- ' if found.id.startswith('-') else ''}{shlex.quote(found.id)}",
    }
