"""Dead jobs: first the groups that died of the same cause, then the list. Only reads.

The view of a group shows its probe: one job that was put back to see if the cause is fixed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fileq.brokers.types import Record
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS, GroupState
from fileq.commands.action_log import ACTIONS
from fileq.core.fingerprint import common_words
from fileq.core.job import State
from fileq.queries.dead_jobs import DeadGroup, GroupedBy
from fileq.queries.documents import JobDocument, job_document
from fileq.queries.job_filter import JobConditions, conditions_in
from fileq.queries.job_queries import wait_reasons
from fileq.server.api.dead_endpoints import DeadGroupsQuery, dead_groups
from fileq.server.console.charts import spark_bars
from fileq.server.console.file_views import Preview, preview_of
from fileq.server.console.job_steps import paused_of, waits_in, what_then
from fileq.server.console.operation_views import recent_action
from fileq.server.console.view import LONG_SCAN_S, UNMARKED, GroupMark, ViewList, ViewRequest, mark_of, read_notes

VIEWS = ViewList()

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
    "kind": "Grouped by error class, e.g. ValueError; one class may have several causes.",
    "type": "Grouped by job type; all files are one group.",
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
    records = _records(request, [*listed, *([query.probe] if query.probe else [])])
    shown = [records.get(id) for id in listed]  # one may have been retried meanwhile
    probe = _probe(request, records.get(query.probe)) if query.probe else None
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
        "preview": _preview(request, opened.group, records) if opened else None,
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


def _records(request: ViewRequest[Any], ids: Sequence[str]) -> dict[str, Record]:
    """By id; one round trip for all of them."""
    found = request.broker.records(ids) if ids else []
    return {record.id: record for record in found if record is not None}


def _probe(request: ViewRequest[Any], record: Record | None) -> JobDocument | None:
    """With what keeps it from running; None if the record has expired. One round trip while it waits."""
    if record is None:
        return None
    return request.shown(job_document(record, wait_reasons(request.broker, [record]).get(record.id, ())))


def _preview(request: ViewRequest[Any], group: DeadGroup, records: Mapping[str, Record]) -> Preview | None:
    return preview_of(request, group.sample_path, group.sample_id, record=records.get(group.sample_id))
