"""Dead jobs: first the groups that died of the same cause, then the list. Only reads.

The page of a group shows its probe: one job that was put back to see if the cause is fixed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fileq.client.dead_groups import DeadGroup, DeadGroups, GroupedBy
from fileq.commands.acknowledgements import Acknowledgement, GroupState, group_state
from fileq.core.api_key import Scope
from fileq.core.job import State
from fileq.server.api.acknowledgement_endpoints import list_acknowledgements
from fileq.server.api.dead_endpoints import DeadGroupsQuery, list_dead, show_dead_groups
from fileq.server.api.job_conditions import JobConditions, conditions_in
from fileq.server.api.job_document import JobDocument, job_document
from fileq.server.api.job_endpoints import show_job
from fileq.server.api.job_lists import JobListQuery
from fileq.server.console.charts import spark_bars
from fileq.server.console.file_preview import preview_of
from fileq.server.console.page import PageRequest
from fileq.server.problems import ApiProblem

GROUPS_MAX = 50
GROUPINGS: Mapping[GroupedBy, str] = {
    "fingerprint": "Cause",
    "directory": "Directory",
    "kind": "Kind of error",
    "type": "Type",
}
NO_EXTENSION = "(none)"
_ORDER: Mapping[GroupState, int] = {"again": 0, "new": 0, "acknowledged": 1}
_UNSAFE = re.compile(r"\\x[89a-f][0-9a-f]|[*?\[\]{}\\]")


class DeadQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """The conditions of the jobs, what makes a group, and the job that was retried as a probe."""

    by: GroupedBy = "fingerprint"
    probe: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    cursor: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class Facet(Struct, frozen=True):
    """A part of a group. `match` is the glob of its files; "" if no glob describes them."""

    name: str
    count: int
    match: str


class GroupCard(Struct, frozen=True):
    """A group with all that the page shows of it. `filter` are the conditions of exactly its jobs, for an action on all
    of them; empty if no conditions describe them. `narrower` are conditions that show the causes within the group."""

    group: DeadGroup
    state: GroupState
    acknowledgement: Acknowledgement | None
    chart: Any
    directories: tuple[Facet, ...]
    extensions: tuple[Facet, ...]
    filter: dict[str, Any]
    narrower: dict[str, str]


def dead(request: PageRequest) -> Mapping[str, Any]:
    """One scan, that of the groups. A list with conditions would be another one, so it is on the page of jobs."""
    query: DeadQuery = request.query
    conditions = conditions_in(query)
    given = msgspec.structs.asdict(conditions)
    found = request.ask(show_dead_groups, DeadGroupsQuery(**given, by=query.by, limit=GROUPS_MAX))
    cards = _cards(request, found, query)
    opened = cards[0] if query.fingerprint and query.by == "fingerprint" and len(cards) == 1 else None
    filter = _of_jobs(conditions)
    listed = None if filter or not found.total else request.ask(list_dead, JobListQuery(cursor=query.cursor))
    return {
        "found": found,
        "cards": cards,
        "opened": opened,
        "jobs": _newest(request, opened.group) if opened else listed.jobs if listed is not None else (),
        "next_cursor": listed.next_cursor if listed is not None else None,
        "probe": _probe(request, query.probe) if query.probe else None,
        "preview": preview_of(request, opened.group.sample_path, opened.group.sample_id) if opened else None,
        "filter": filter,
        "address": address_of(filter),
        "by": query.by,
        "groupings": GROUPINGS,
        "shows_paths": not request.services.hides_paths,
        "may_operate": request.has(Scope.OPERATE),
    }


def _cards(request: PageRequest, found: DeadGroups, query: DeadQuery) -> list[GroupCard]:
    """Groups without an acknowledgement, and those that came back, are first; among them the largest."""
    is_by_cause = query.by == "fingerprint"
    listed = request.ask(list_acknowledgements).acknowledgements if is_by_cause and found.groups else ()
    known = {one.fingerprint: one for one in listed}
    cards = [_card(group, known.get(group.fingerprint) if is_by_cause else None, query) for group in found.groups]
    return sorted(cards, key=lambda card: _ORDER[card.state])


def _card(group: DeadGroup, acknowledgement: Acknowledgement | None, query: DeadQuery) -> GroupCard:
    current = _of_jobs(query)
    narrower = current | narrower_conditions(group, query.by)
    return GroupCard(
        group=group,
        state=group_state(acknowledgement, group.last),
        acknowledgement=acknowledgement,
        chart=spark_bars(group.timeline, title=f"{group.count} deaths over time"),
        directories=tuple(
            Facet(one.name, one.count, directory_match(one.name, query.match)) for one in group.directories
        ),
        extensions=tuple(
            Facet(one.name, one.count, extension_match(one.name, query.match)) for one in group.extensions
        ),
        filter=narrower | {"status": "dead"} if query.by == "fingerprint" else {},
        narrower=address_of(narrower) if narrower != current or query.by == "fingerprint" else {},
    )


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


def _newest(request: PageRequest, group: DeadGroup) -> list[JobDocument]:
    """The newest jobs of a group that are still dead. The scan of the group has found their ids, so the page needs no
    second scan."""
    records = request.services.broker.records(list(group.newest_ids))
    dead = [record for record in records if record is not None and record.state is State.DEAD]
    return [request.shown(job_document(record)) for record in dead]


def _probe(request: PageRequest, id: str) -> JobDocument | None:
    """None if its record has expired."""
    try:
        return request.ask(show_job, id=id)
    except ApiProblem as problem:
        if problem.slug != "not-found":
            raise
        return None
