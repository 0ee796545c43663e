"""Lists of jobs: which jobs a request means, and one page of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.core.api_key import Scope
from fileq.queries.documents import JobDocument
from fileq.queries.job_filter import JobConditions, JobFilter, StoredJob, conditions_in, read_conditions
from fileq.queries.job_selection import SCAN_MAX, complete_records, job_page
from fileq.server.decoding import glob_problems, invalid
from fileq.server.problems import FieldProblem
from fileq.server.route import ApiRequest, RouteList

ROUTES = RouteList("jobs")


def filter_of(request: ApiRequest[Any, Any], given: JobConditions, *, at: str = "?") -> JobFilter:
    """The filter, within what the caller's key is for. `at` is where the conditions are in the request: `?`, or a JSON
    pointer that ends with a slash. Raises ApiProblem with everything that is wrong."""
    services = request.services
    hides_paths = services.hides_paths
    wanted, wrong = read_conditions(given, services.config.worker.priorities, services.now_ms())
    found = [FieldProblem(f"{at}{name}", detail) for name, detail in wrong]
    found += glob_problems(given.match, f"{at}match", hides_paths=hides_paths)
    if found:
        raise invalid(found)
    return replace(wanted, ignores_paths=hides_paths, only=request.caller.restriction or None)


# One page of a list of jobs, for GET /jobs and GET /dead.


REACH = 10_000  # jobs that `page` and `limit` can reach; cursors have no end
LIMIT_MAX = 1000
RECORDS_AT_ONCE = 50
_AT_ONCE_BYTES = 4 << 20


class JobListQuery(JobConditions, frozen=True, forbid_unknown_fields=True):
    """A list: its conditions, and which page. `cursor` is the `next_cursor` of the page before; it has no end, while
    `page` times `limit` is at most 10,000."""

    page: Annotated[int, Meta(ge=1, le=REACH)] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 20
    cursor: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class JobList(Struct, frozen=True):
    """Jobs of a list: running, waiting, delayed, then dead, completed and cancelled ones, the newest first. `total` is
    null if it would take a long scan to know it. `scanned` elements were looked at; `is_partial`: the scan ended before
    the page was full, or its jobs are too long together (32 MiB), so follow `next_cursor`, which is null at the end."""

    jobs: tuple[JobDocument, ...]
    total: int | None
    page: int
    limit: int
    next_cursor: str | None
    scanned: int
    is_partial: bool


class _Cursor(Struct, frozen=True, array_like=True):
    """`until_ms` and `since_ms` keep what a duration such as 2h meant on the first page."""

    position: str
    page: int
    since_ms: int | None
    until_ms: int | None


def list_page(
    request: ApiRequest[Any, Any], name: str, wanted: JobFilter | None = None, *, scan_max: int = SCAN_MAX
) -> JobList:
    """What the query of the request asks for. `name` is that of the list; `wanted` replaces the filter of the query."""
    services, query = request.services, request.query
    if wanted is None:
        wanted = filter_of(request, query)
    number, position = query.page or 1, ""
    # The same text for the same conditions: it binds a cursor to its list.
    list_name = f"{name}:{msgspec.json.encode(conditions_in(query), order='sorted').decode()}"
    if query.cursor is not None and query.page is not None:
        raise invalid([FieldProblem("?page", "page and cursor are both given; give one of them")])
    if (cursor := services.signer.read_cursor(list_name, query.cursor, _Cursor)) is not None:
        number, position = cursor.page, cursor.position
        wanted = replace(wanted, since_ms=cursor.since_ms, until_ms=cursor.until_ms)
    elif number * query.limit > REACH:
        detail = f"page {number} of {query.limit} is beyond {REACH:,} jobs; follow next_cursor instead"
        raise invalid([FieldProblem("?page", detail)])
    skip = 0 if position else (number - 1) * query.limit
    page = job_page(
        services.broker,
        services.config.worker.priorities,
        wanted,
        cursor=position,
        limit=query.limit,
        skip=skip,
        scan_max=scan_max,
        has_records=False,
    )
    following = _Cursor(page.next_cursor, number + 1, wanted.since_ms, wanted.until_ms)
    return JobList(
        jobs=tuple(_documents(services.broker, page.jobs)),
        total=page.total,
        page=number,
        limit=query.limit,
        next_cursor=services.signer.cursor(list_name, following) if page.next_cursor else None,
        scanned=page.scanned,
        is_partial=page.is_partial,
    )


def _documents(broker: FullBroker, jobs: Sequence[StoredJob]) -> Iterator[JobDocument]:
    """Reads the records in parts: together they may be much longer than what is shown of them."""
    part, size = list[StoredJob](), 0
    for stored in jobs:
        if part and (len(part) == RECORDS_AT_ONCE or size + len(stored.raw) > _AT_ONCE_BYTES):
            yield from (one.document() for one in complete_records(broker, part))
            part, size = [], 0
        part.append(stored)
        size += len(stored.raw)
    yield from (one.document() for one in complete_records(broker, part))


@ROUTES.add("GET /jobs", Scope.READ, "jobs that meet all conditions", serves_limited=True, is_scan=True)
def list_jobs(request: ApiRequest[JobListQuery, UnsetType]) -> JobList:
    return list_page(request, "jobs")
