"""Lists of jobs with their filters, one job with everything that is known about it, actions on many, and dead jobs."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS, GroupState
from fileq.commands.action_log import ACTIONS, LoggedAction
from fileq.commands.admin.pauses import HISTORIES, NOTES
from fileq.core.fingerprint import common_words
from fileq.core.job import DELAYED_STATES, State, parse_time
from fileq.core.schedule import schedule_of
from fileq.queries.dead_jobs import DeadGroup, GroupedBy
from fileq.queries.documents import JobDocument, batch_document, job_document
from fileq.queries.file_pages import EXPIRED
from fileq.queries.job_filter import JobConditions, conditions_in
from fileq.server.api.action_endpoints import DeadGroupsQuery, dead_groups, list_operations
from fileq.server.api.job_endpoints import JobListQuery, list_page, show_job, waiting_document
from fileq.server.console.charts import spark_bars
from fileq.server.console.file_views import may_see_content, preview_of
from fileq.server.console.job_steps import (
    attempts_text,
    deferred_times,
    paused_of,
    reasons_of,
    steps_of,
    waits_in,
    what_then,
)
from fileq.server.console.view import (
    LONG_SCAN_S,
    UNMARKED,
    GroupMark,
    ViewList,
    ViewRequest,
    mark_of,
    mark_of_death,
    path_part,
    read_notes,
)
from fileq.server.problems import ApiProblem
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


# Actions on jobs: the operations that do them in the background, and what became of the jobs of one. Only reads.

SHOWN = 50  # jobs of one action
LATEST = 20  # actions of the view of operations
RECENT_S = 900.0
JUST_NOW_S = 60.0  # a person who chose single jobs sees the way to them where they were chosen
_WITH_PATHS = ("match", "q", "error")  # conditions
DONE = {
    JobAction.RETRY: "retried",
    JobAction.CANCEL: "cancelled",
    JobAction.RUN: "run now",
    JobAction.DELETE: "deleted",
}
# How an action may end for a job, in this order: the words of the filters, and what they mean after it.
OUTCOMES: Mapping[str, tuple[State, ...]] = {
    "completed": (State.COMPLETED,),
    "running": (State.RUNNING,),
    "waiting": (State.PENDING, *DELAYED_STATES),
    "dead": (State.DEAD,),
    "cancelled": (State.CANCELLED,),
    EXPIRED: (),
}


class OperationQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Only the jobs that are so now."""

    status: Literal["completed", "running", "waiting", "dead", "cancelled", "expired"] | None = None


class OutcomeCount(Struct, frozen=True):
    status: str
    word: str
    count: int


@VIEWS.add("/admin/operations", "Operations", "admin_operations.html")
def operations(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Two round trips."""
    latest = [one for one in request.services.action_log.all() if one.count > 1 or one.conditions]
    return {
        "operations": request.ask(list_operations).operations,
        "latest": [_shown(request, one) for one in latest[:LATEST]],
    }


@VIEWS.add("/admin/operations/{id:path}", "Operation", "operation.html")
def operation(request: ViewRequest[OperationQuery]) -> Mapping[str, Any]:
    """Three round trips: the log, the states of its jobs, and the whole records of those that are listed."""
    id = request.id
    found = next((one for one in request.services.action_log.all() if one.id == id), None)
    if found is None:
        detail = f"no action {id[:100]!r} in the log; it keeps only the newest actions"
        raise ApiProblem("not-found", detail)
    outlines = zip(found.ids, request.broker.outlines(found.ids) if found.ids else (), strict=True)
    words = {state: word for word, states in OUTCOMES.items() for state in states}
    statuses = {id: words[outline.state] if outline is not None else EXPIRED for id, outline in outlines}
    wanted = [job_id for job_id, status in statuses.items() if request.query.status in (None, status)]
    listed = [job_id for job_id in wanted if statuses[job_id] != EXPIRED][:SHOWN]
    records = request.broker.records(listed) if listed else []
    return {
        "action": _shown(request, found),
        "outcomes": outcomes_of(statuses.values(), found.action),
        "jobs": [request.shown(job_document(record)) for record in records if record is not None],
        "matching": len(wanted),
    }


def _shown(request: ViewRequest[Any], action: LoggedAction) -> LoggedAction:
    """Without conditions and errors that may name files, if this server hides them."""
    if not request.services.hides_paths:
        return action
    return replace(action, conditions={k: v for k, v in action.conditions.items() if k not in _WITH_PATHS}, cause="")


def outcomes_of(statuses: Iterable[str], action: JobAction) -> list[OutcomeCount]:
    """How many jobs are in which state now."""
    counts = Counter(statuses)
    words = {JobAction.RETRY: {"dead": "dead again"}, JobAction.DELETE: {EXPIRED: "deleted"}}.get(action, {})
    return [OutcomeCount(word, words.get(word, word), counts[word]) for word in OUTCOMES if counts[word]]


def recent_action(
    request: ViewRequest[Any], actions: Sequence[LoggedAction], conditions: Mapping[str, Any]
) -> LoggedAction | None:
    """The last of the actions on several jobs, if it was a moment ago and belongs to a list with these conditions: from
    there a view leads to its jobs."""
    latest = next((one for one in actions if one.count > 1), None)
    at = parse_time(latest.at) if latest is not None else None
    if latest is None or at is None:
        return None
    age_s = request.services.now_ms() / 1000 - at.timestamp()
    chosen, listed = ({k: v for k, v in one.items() if k != "status"} for one in (latest.conditions, conditions))
    is_own = latest.by == request.caller.name and age_s < JUST_NOW_S and not latest.conditions
    belongs = not listed or listed == chosen or is_own
    return _shown(request, latest) if belongs and age_s <= RECENT_S else None


# Dead jobs: first the groups that died of the same cause, then the list. Only reads.
#
# The view of a group shows its probe: one job that was put back to see if the cause is fixed.

GROUPS_MAX = 50
GROUPED_MAX = 2_500  # dead jobs that are looked at: a view must be there within 100 ms
GROUPINGS: Mapping[GroupedBy, str] = {
    "fingerprint": "Cause",
    "directory": "Directory",
    "kind": "Error class",
    "type": "Type",
}
GROUPING_HINTS: Mapping[GroupedBy, str] = {
    "fingerprint": "Grouped by identical error.",
    "directory": "Grouped by directory.",
    "kind": "Grouped by error class, e.g. ValueError; a class can have several causes.",
    "type": "Grouped by job type; file jobs form one group.",
}
TITLE_LENGTH = 200
NO_EXTENSION = "(none)"
# Groups without an acknowledgement, and those that came back, are first.
_ORDER: Mapping[GroupState, int] = {"again": 0, "new": 0, "acknowledged": 1}
_UNSAFE = re.compile(r"\\x[89a-f][0-9a-f]|[*?\[\]{}\\]")


class DeadQuery(DeadGroupsQuery, frozen=True, forbid_unknown_fields=True):
    """The conditions of the jobs, what makes a group, and the job that was retried as a probe."""

    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX)] = GROUPS_MAX
    probe: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class Facet(Struct, frozen=True):
    """A part of a group. `match` is the glob of its files; "" if no glob describes them."""

    name: str
    count: int
    match: str


class GroupCard(Struct, frozen=True):
    """A group with all that the view shows of it. `filter` are the conditions of exactly its jobs, for an action on all
    of them; empty if no conditions describe them. `narrower` are conditions that show the causes within the group.
    `newest` is the mark of the cause of its newest job, if the group may have several causes."""

    group: DeadGroup
    mark: GroupMark
    newest: GroupMark
    chart: Any
    directories: tuple[Facet, ...]
    extensions: tuple[Facet, ...]
    filter: dict[str, Any]
    narrower: dict[str, str]
    headline: str


@VIEWS.add("/dead", "Dead", "dead.html", is_scan=True, timeout_s=LONG_SCAN_S, letter="d")
def dead(request: ViewRequest[DeadQuery]) -> Mapping[str, Any]:
    """One scan, that of the groups. It has seen the newest jobs, so their list needs only their records; a longer list
    or one with conditions would be another scan, so it is on the view of jobs."""
    query = request.query
    found = request.shown(dead_groups(request, query, GROUPED_MAX))
    notes = read_notes(request, (ACKNOWLEDGEMENTS, ACTIONS))
    cards = [_card(group, mark_of(group, notes.acknowledgements), query) for group in found.groups]
    cards.sort(key=lambda card: _ORDER[card.mark.state])  # among equal ones the largest group is first
    opened = cards[0] if query.fingerprint and query.by == "fingerprint" and len(cards) == 1 else None
    filter = _of_jobs(query)
    listed = opened.group.newest_ids if opened else found.newest_ids if not filter else ()
    wanted = [*listed, *([query.probe] if query.probe else [])]
    records = {one.id: one for one in (request.broker.records(wanted) if wanted else ()) if one is not None}
    shown = [records.get(id) for id in listed]  # one may have been retried meanwhile
    group, probed = opened.group if opened else None, records.get(query.probe or "")
    probe = request.shown(waiting_document(request.broker, probed)) if probed is not None else None
    is_probed = probe is not None and not probe.is_finished  # while a probe waits, the reasons cost a round trip
    return {
        "stopped": request.services.open_breakers.routes() if not is_probed else (),
        "recent": recent_action(request, notes.actions, filter) if not is_probed else None,
        "found": found,
        "cards": cards,
        "opened": opened,
        "jobs": [request.shown(job_document(one)) for one in shown if one is not None and one.state is State.DEAD],
        "probe": probe,
        "probe_queue": paused_of(probe) if probe is not None else "",
        "probe_then": what_then(probe.deferred) if probe is not None else "",
        "probe_waits": waits_in(probe) if probe is not None else [],
        "preview": preview_of(request, group.sample_path, group.sample_id, record=records.get(group.sample_id))
        if group
        else None,
        "filter": filter,
        "address": address_of(filter),
        "groupings": GROUPINGS,
        "grouping_hint": GROUPING_HINTS[query.by],
        "shows_paths": not request.services.hides_paths,
    }


def _card(group: DeadGroup, mark: GroupMark, query: DeadQuery) -> GroupCard:
    is_by_cause, match = query.by == "fingerprint", query.match
    current = _of_jobs(query)
    narrower = current | narrower_conditions(group, query.by)
    return GroupCard(
        group=group,
        mark=mark if is_by_cause else UNMARKED,
        newest=UNMARKED if is_by_cause else mark,
        chart=spark_bars(group.timeline, title=f"{group.count} deaths over time"),
        directories=tuple(Facet(one.name, one.count, directory_match(one.name, match)) for one in group.directories),
        extensions=tuple(Facet(one.name, one.count, extension_match(one.name, match)) for one in group.extensions),
        filter=narrower | {"status": "dead"} if is_by_cause else {},
        narrower=address_of(narrower) if narrower != current or is_by_cause else {},
        headline=headline(group) if is_by_cause else "",
    )


def cause_of(group: DeadGroup) -> str:
    """What the errors of a group have in common. One job needs no such headline."""
    return common_words(group.error, group.sample_path) if group.count > 1 else ""


def headline(group: DeadGroup) -> str:
    """What every view calls the group: its cause, or the first line of its error."""
    found = cause_of(group) or group.error.strip().partition("\n")[0] or group.kind or "Error"
    return found if len(found) <= TITLE_LENGTH else f"{found[:TITLE_LENGTH]}…"


def _of_jobs(query: JobConditions) -> dict[str, Any]:
    """The conditions that are set. Every job here is dead, so the status is not among them."""
    return {name: value for name, value in msgspec.to_builtins(conditions_in(query)).items() if name != "status"}


def address_of(conditions: Mapping[str, Any]) -> dict[str, str]:
    """As the parameters of an address: a tag is `tag.NAME`."""
    tags = {f"tag.{name}": value for name, value in conditions.get("tag", {}).items()}
    return {name: value for name, value in conditions.items() if name != "tag"} | tags


def narrower_conditions(group: DeadGroup, by: GroupedBy) -> dict[str, str]:
    """Conditions that the jobs of the group meet; none if there is no such condition."""
    if by == "directory":
        return {"match": directory_match(group.key, None)} if group.key else {}
    condition = {"fingerprint": "fingerprint", "kind": "error", "type": "type"}[by]
    return {condition: group.key} if group.key else {}


def directory_match(directory: str, current: str | None) -> str:
    """The glob of the files in a directory. A condition on the extension that is set already stays.

    Characters with a meaning in globs, and bytes that are not UTF-8, are replaced by `?`."""
    name = current if current and current.startswith("*.") and "/" not in current else "*"
    return f"{_UNSAFE.sub('?', directory).rstrip('/')}/{name}"


def extension_match(extension: str, current: str | None) -> str:
    """The glob of the files with an extension. A condition on the directory that is set already stays."""
    if extension == NO_EXTENSION:
        return ""  # a glob does not describe them
    directory = current[:-1] if current and current.endswith("/*") else ""
    return f"{directory}*{_UNSAFE.sub('?', extension)}"
