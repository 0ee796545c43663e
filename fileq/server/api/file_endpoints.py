"""Files: those that the ledger knows, what happened to one, counts by directory, their content, and reprocessing."""

from __future__ import annotations

import asyncio
import os
import re
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, UnsetType
from starlette.responses import Response

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.reprocess import ReprocessReport, reprocess
from fileq.core.api_key import Scope
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.job import State
from fileq.queries.file_pages import FilePage, FileStatus, FileTree, file_page, file_tree, file_tree_and_page, prefix_of
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_queries import FileTrace, trace
from fileq.server.api.job_endpoints import PathText
from fileq.server.decoding import invalid
from fileq.server.file_content import BINARY, IMAGE_TYPES, ContentResponse, OpenContent, open_content
from fileq.server.problems import ApiProblem, FieldProblem
from fileq.server.request_globs import glob_problems
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, Route
from fileq.server.services import Services

RECORDS_MAX = 2_500  # that a trace searches, whole: about 50 ms
REPROCESSED_MAX = 1_000
MARGIN = 0.01  # how many more files than expected are accepted
_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")
Glob = Annotated[str, Meta(min_length=1, max_length=1000)]


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`under` is a directory; `match` a glob: '*.pdf' matches the name, one with a slash the whole path. `limit` is
    about how many files are wanted; a page may have some more."""

    under: Annotated[str, Meta(max_length=4096)] = ""
    match: Glob | None = None
    status: FileStatus | None = None
    cursor: Annotated[str, Meta(max_length=10_000)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class TreeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    under: Annotated[str, Meta(max_length=4096)] = ""
    depth: Annotated[int, Meta(ge=0, le=20)] = 1


class TraceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    path: PathText


class ContentQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`job` is the job that is about the file or made it; without it the newest version that the ledger knows."""

    path: PathText
    job: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ReprocessOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Which files are enqueued again; all conditions must be met, and one is needed. `path` is one file, `under` a
    directory. `since` and `until` are about the modification of the file, the others about its last job. First
    `dry_run`, then without it and with the `enqueued` of the dry run as `expect`."""

    path: PathText | None = None
    under: PathText | None = None
    match: Glob | None = None
    status: State | None = None
    type: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    error: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    queue: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    fingerprint: Annotated[str, Meta(min_length=4, max_length=64)] | None = None
    since: Annotated[datetime, Meta(tz=True)] | None = None
    until: Annotated[datetime, Meta(tz=True)] | None = None
    limit: Annotated[int, Meta(ge=1, le=REPROCESSED_MAX)] = REPROCESSED_MAX
    dry_run: bool = True
    expect: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None


def list_files(request: ApiRequest[FilesQuery, UnsetType]) -> FilePage:
    services, query = request.services, request.query
    _check_shown(services)
    if problems := glob_problems(query.match, "?match", hides_paths=False):
        raise invalid(problems)
    place = _list_name(query)
    cursor = services.signer.read_cursor(place, query.cursor, str) if query.cursor else ""
    under = _directory(query.under)
    page = file_page(services.broker, under, match=query.match, status=query.status, cursor=cursor, limit=query.limit)
    return _with_cursor(page, place, services)


def _list_name(query: FilesQuery) -> str:
    return f"files:{query.under}:{query.match}:{query.status}"


def _with_cursor(page: FilePage, place: str, services: Services) -> FilePage:
    following = services.signer.cursor(place, page.next_cursor) if page.next_cursor else ""
    return FilePage(page.files, following, page.scanned, page.is_partial, page.total)


def tree_and_files(services: Services, under: str, depth: int, *, limit: int) -> tuple[FileTree, FilePage]:
    """What GET /files/tree and the first page of GET /files answer, from one scan."""
    _check_shown(services)
    tree, page = file_tree_and_page(services.broker, _directory(under), depth, limit=limit)
    return tree, _with_cursor(page, _list_name(FilesQuery(under)), services)


def trace_file(request: ApiRequest[TraceQuery, UnsetType]) -> FileTrace:
    """Its versions with their jobs, newest first, and the job that made it."""
    _check_shown(request.services)
    try:
        broker = request.services.broker
        return trace(broker, known_path(broker, request.query.path), RECORDS_MAX)
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        raise ApiProblem("not-found", str(error)) from error


def show_tree(request: ApiRequest[TreeQuery, UnsetType]) -> FileTree:
    _check_shown(request.services)
    return file_tree(request.services.broker, _directory(request.query.under), request.query.depth)


def reprocess_files(request: ApiRequest[NoQuery, ReprocessOrder]) -> ApiAnswer:
    """Enqueues the newest known version of each file again, as `fileq reprocess` does; at most 1,000 files."""
    services, order = request.services, request.body
    _check_shown(services)
    wanted = _filter_of(order)
    request.note.is_dry_run = order.dry_run
    request.note.chose(_chosen(order))
    planned = _run(services, order, wanted, is_dry_run=True)
    if order.dry_run:
        return ApiAnswer(planned, count=0)
    if order.expect is None:
        detail = "expect is missing; give the number of files that the dry run would enqueue"
        raise invalid([FieldProblem("/expect", detail)])
    if planned.enqueued > order.expect * (1 + MARGIN):
        detail = f"{planned.enqueued:,} files would be enqueued, and {order.expect:,} are expected; repeat the dry run"
        raise ApiProblem("count-changed", detail)
    done = _run(services, order, wanted, is_dry_run=False)
    return ApiAnswer(done, count=done.enqueued)


async def show_content(request: ApiRequest[ContentQuery, UnsetType]) -> Response:
    """Only of a file that is still the version that its job is about. Texts and images are shown inline, everything
    else is an attachment. If server.files is `preview`, only texts (their first MiB) and small images."""
    services, query = request.services, request.query
    if services.config.server.files not in ("preview", "download"):
        raise ApiProblem("not-allowed", "the content of files is not shown: server.files is not preview or download")
    given_up = asyncio.Event()

    def opened() -> OpenContent:
        path = known_path(services.broker, query.path)
        request.caller.check_path(os.fsdecode(path))
        content = open_content(services.broker, services.config, path, query.job)
        if given_up.is_set():
            os.close(content.fd)
        return content

    slots, caller = services.transfers.slots, request.caller.id
    slots.take(caller)
    try:
        content = await services.pool.call(opened, timeout_s=10.0)
    except BaseException:
        given_up.set()
        slots.give_back(caller)
        raise
    return ContentResponse(content, services.transfers, caller)


def _run(services: Services, order: ReprocessOrder, wanted: JobFilter, *, is_dry_run: bool) -> ReprocessReport:
    config = services.config
    return reprocess(
        services.broker,
        config,
        wanted=wanted,
        prefix=prefix_of(_directory(order.under or "")),
        path=known_path(services.broker, order.path) if order.path is not None else None,
        is_dry_run=is_dry_run,
        here=config.paths.here,
    )


def _chosen(order: ReprocessOrder) -> dict[str, str]:
    fields = ("path", "under", "match", "status", "type", "error", "queue", "fingerprint", "since", "until")
    return {name: str(value) for name in fields if (value := getattr(order, name)) is not None}


def _filter_of(order: ReprocessOrder) -> JobFilter:
    if problems := glob_problems(order.match, "/match", hides_paths=False):
        raise invalid(problems)
    wanted = JobFilter(
        state=order.status,
        type=order.type,
        match=order.match,
        error=order.error,
        since_ms=_ms(order.since),
        until_ms=_ms(order.until),
        queue=order.queue,
        limit=order.limit,
        fingerprint=order.fingerprint,
    )
    if order.path is not None and order.under is not None:
        raise invalid([FieldProblem("/under", "path and under are both given; give one of them")])
    if not wanted.has_conditions and (wanted.state, order.path, order.under) == (None, None, None):
        raise invalid([FieldProblem("", "no condition is given; for all files, match is '*'")])
    return wanted


def _ms(moment: datetime | None) -> int | None:
    return int(moment.timestamp() * 1000) if moment is not None else None


def _check_shown(services: Services) -> None:
    if services.hides_paths:
        raise ApiProblem("not-allowed", "server.files is none: this server hides the paths of files")


def known_path(broker: FullBroker, path: str) -> bytes:
    """The bytes of a path that a client sent. Answers show a byte that is not UTF-8 as an escape such as \\xff, so a
    path that has escapes may mean these bytes: it does if the ledger knows only that path."""
    raw = path.encode(errors="surrogateescape")
    meant = _unescaped(raw)
    if meant == raw:
        return raw
    exact, escaped = broker.lookup([raw, meant])
    return meant if exact is None and escaped is not None else raw


def _directory(under: str) -> str:
    """The directory that is meant, with bytes that are not UTF-8 as surrogates. Here an escape always means the byte:
    to find out if a directory of that very name is known, a broker might have to look through the whole ledger."""
    return _unescaped(under.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _unescaped(path: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), path)


ROUTES = (
    Route(
        method="GET",
        path="/files",
        area="files",
        scopes=(Scope.READ,),
        summary="files that the ledger knows",
        function=list_files,
        query=FilesQuery,
        response=FilePage,
        problems=("not-allowed",),
        is_scan=True,
    ),
    Route(
        method="GET",
        path="/files/trace",
        area="files",
        scopes=(Scope.READ,),
        summary="what happened to a file",
        function=trace_file,
        query=TraceQuery,
        response=FileTrace,
        problems=("not-allowed", "not-found"),
        is_scan=True,
    ),
    Route(
        method="GET",
        path="/files/tree",
        area="files",
        scopes=(Scope.READ,),
        summary="counts of files by directory",
        function=show_tree,
        query=TreeQuery,
        response=FileTree,
        problems=("not-allowed",),
        is_scan=True,
    ),
    Route(
        method="POST",
        path="/files/reprocess",
        area="files",
        scopes=(Scope.OPERATE,),
        summary="enqueue known files again",
        function=reprocess_files,
        body=ReprocessOrder,
        response=ReprocessReport,
        problems=("not-allowed", "count-changed"),
        is_scan=True,
    ),
    Route(
        method="GET",
        path="/files/content",
        area="files",
        scopes=(Scope.FILES,),
        summary="the content of a file",
        function=show_content,
        serves_limited=True,
        query=ContentQuery,
        response=BINARY,
        other_types=("text/plain", *IMAGE_TYPES),
        problems=("not-allowed", "not-found", "conflict"),
    ),
)
