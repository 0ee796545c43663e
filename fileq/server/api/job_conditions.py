"""The filter of jobs: the same names for lists, groups and actions, in a query and in a body."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fileq.config import Config
from fileq.core.job import State
from fileq.core.units import parse_duration
from fileq.queries.job_filter import JobFilter
from fileq.server.decoding import invalid
from fileq.server.identity import Caller
from fileq.server.problems import FieldProblem
from fileq.server.request_globs import glob_problems

DEFERRED = "deferred"
StatusWord = Literal[
    "pending", "scheduled", "running", "retrying", "completed", "dead", "cancelled", "processing", "failed", "deferred"
]
FilterText = Annotated[str, Meta(min_length=1, max_length=500)]
FilterTime = Annotated[str, Meta(min_length=1, max_length=50)]


class JobConditions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that meet every condition. `status` may also be processing (running), failed (retrying) or deferred.
    `match` is a glob: with a slash in front it is compared with the whole path, otherwise with its end. `error` is
    part of an error, or its kind. `since` and `until` compare when a job ended or, until then, was created: RFC 3339,
    or a duration such as 2h, which means two hours ago. `tag.k` in a query, `{"tag": {"k": …}}` in a body. `q` is in
    the id, path, type or error. `fingerprint` may be shortened to 4 digits. A server that hides paths refuses `match`,
    and `q` and `error` do not see paths."""

    status: StatusWord | None = None
    type: FilterText | None = None
    priority: FilterText | None = None
    queue: FilterText | None = None
    worker: FilterText | None = None
    batch: FilterText | None = None
    schedule: FilterText | None = None
    match: FilterText | None = None
    error: FilterText | None = None
    fingerprint: Annotated[str, Meta(pattern="^[0-9a-fA-F]{4,12}$")] | None = None
    since: FilterTime | None = None
    until: FilterTime | None = None
    tag: Annotated[dict[str, FilterText], Meta(max_length=20)] = {}
    q: FilterText | None = None


NAMES = JobConditions.__struct_fields__


def conditions_in(query: JobConditions) -> JobConditions:
    """Only the conditions of a query that has more parameters."""
    return JobConditions(*(getattr(query, name) for name in NAMES))


def filter_of(given: JobConditions, config: Config, now_ms: int, caller: Caller, *, at: str = "?") -> JobFilter:
    """The filter, within what the caller's key is for. `at` is where the conditions are in the request: `?`, or a JSON
    pointer that ends with a slash. Raises ApiProblem with everything that is wrong."""
    found: list[FieldProblem] = []
    since_ms = _time_ms("since", given.since, now_ms, at, found)
    until_ms = _time_ms("until", given.until, now_ms, at, found)
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        found.append(FieldProblem(f"{at}since", "since is later than until, so no job can match; exchange them"))
    queues = config.worker.priorities
    if given.queue is not None and given.queue not in queues:
        detail = f"queue is {given.queue!r}; the queues are {', '.join(queues)}"
        found.append(FieldProblem(f"{at}queue", detail))
    hides_paths = config.server.files == "none"
    found += glob_problems(given.match, f"{at}match", hides_paths=hides_paths)
    if found:
        raise invalid(found)
    return JobFilter(
        state=State.from_filter(given.status) if given.status is not None else None,
        type=given.type,
        match=given.match,
        error=given.error,
        since_ms=since_ms,
        until_ms=until_ms,
        queue=given.queue,
        is_deferred=given.status == DEFERRED,
        fingerprint=given.fingerprint.lower() if given.fingerprint is not None else None,
        priority=given.priority,
        worker=given.worker,
        batch=given.batch,
        schedule=given.schedule,
        tags=tuple(sorted(given.tag.items())),
        text=given.q,
        ignores_paths=hides_paths,
        only=caller.restriction or None,
    )


def name_of(given: JobConditions) -> str:
    """A text that is the same for the same conditions: it binds a cursor to its list."""
    return msgspec.json.encode(conditions_in(given), order="sorted").decode()


def _time_ms(name: str, text: str | None, now_ms: int, at: str, found: list[FieldProblem]) -> int | None:
    if text is None:
        return None
    try:
        return now_ms - round(parse_duration(text) * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    detail = f"{name} is {text!r}; it must be a time such as 2026-01-31T18:00:00Z, or a duration such as 2h"
    found.append(FieldProblem(f"{at}{name}", detail))
    return None
