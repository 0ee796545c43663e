"""Files: those that the ledger knows, what happened to one, counts by directory, content, reprocessing and uploads."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hmac
import os
import re
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated
from urllib.parse import quote

from msgspec import Meta, Struct, UnsetType, to_builtins
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from fileq.actions.reprocess import ReprocessReport, reprocess
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.commands.action_log import note_upload
from fileq.config import Config
from fileq.core.api_key import Scope
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.job import decode_or_none
from fileq.files.beneath import LeadsOutside, open_without_links
from fileq.files.exclusive_move import PREFIX
from fileq.files.paths import MAX_DEPTH
from fileq.files.status import changed_version
from fileq.files.uploads import ArrivingFile
from fileq.queries.file_pages import FilePage, FileStatus, FileTree, file_page, file_tree, file_tree_and_page, prefix_of
from fileq.queries.job_filter import JobConditions, JobFilter, conditions_in, file_place
from fileq.queries.job_queries import FileTrace, trace
from fileq.server.api.job_endpoints import PathText, filter_of
from fileq.server.connections import Streamed
from fileq.server.limits import SlowWork, pieces
from fileq.server.problems import ApiProblem, glob_problems, invalid, invalid_at
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList
from fileq.server.services import Services

ROUTES = RouteList("files")

# The content of a file for a client: which file may be shown, how it is opened, and as what it is sent.
#
# A file is shown only if the ledger or a job's record knows its path, if it is below a root, and if it is still the
# version that is known there. No link is followed, and what is checked is the open descriptor. What a browser could
# run, such as HTML or SVG, is sent as plain text or as an attachment, and in a sandbox.


PART_BYTES = 256 << 10
PREVIEW_BYTES = 1 << 20  # of a text, if server.files is preview
PREVIEW_IMAGE = 20 << 20
TEXT, BINARY = "text/plain; charset=utf-8", "application/octet-stream"
IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class OpenContent(Struct, frozen=True):
    """`fd` is open for reading; the owner closes it. `size` bytes of the file are sent."""

    fd: int
    name: str
    kind: str
    size: int
    is_cut: bool


def open_content(broker: FullBroker, config: Config, path: bytes, job_id: str | None) -> OpenContent:
    """Blocks. Raises ApiProblem if the file is not known, not there or not to be shown."""
    fd, size = open_known(config, path, known_version(broker, path, job_id))
    try:
        kind, is_cut = kind_of(os.pread(fd, 64 << 10, 0)), False
        if config.server.files == "preview":
            if kind == BINARY or (kind in IMAGE_TYPES and size > PREVIEW_IMAGE):
                raise ApiProblem("not-allowed", "server.files is preview: only texts and small images are shown")
            is_cut = kind == TEXT and size > PREVIEW_BYTES
        name = os.fsdecode(os.path.basename(path))
        return OpenContent(fd, name, kind, PREVIEW_BYTES if is_cut else size, is_cut)
    except BaseException:
        os.close(fd)
        raise


def open_known(config: Config, path: bytes, signature: str) -> tuple[int, int]:
    """A descriptor of this version of the file, which the caller closes, and its size. Blocks; raises ApiProblem."""
    here = config.paths.here(path)
    try:
        reference = open_without_links(here, config.paths.allowed)
        try:
            status = os.fstat(reference)
            if not stat.S_ISREG(status.st_mode):
                raise ApiProblem("conflict", "this is not a regular file")
            if changed_version(here, status, signature) is not None:
                raise ApiProblem("conflict", "the file has changed since its job was enqueued, so it is not shown")
            return os.open(f"/proc/self/fd/{reference}", _READ), status.st_size
        finally:
            os.close(reference)
    except LeadsOutside:
        raise ApiProblem("not-allowed", "the file is not below a root of this server (worker.allowed_roots)") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file can have this name"
        raise ApiProblem("not-found", f"the file can't be opened: {why}") from error


def known_version(broker: FullBroker, path: bytes, job_id: str | None, record: Record | None = None) -> str:
    """The signature of the version that the given job, the ledger, or the job that made the file knows. `record` is
    that of the job, if the caller has read it."""
    if job_id is None:
        [(entry, job_id)] = broker.known_files([path])
        if entry is not None and entry.versions:
            return entry.versions[0][0]
    if record is None and job_id:
        [record] = broker.records([job_id])
    if record is not None:
        made = next((one.signature for one in record.outputs if one.path == path), "")
        job = decode_or_none(record.raw)
        own = (job.version or "") if job is not None and path in (job.path, file_place(record)) else ""
        if made or own:
            return made or own
    raise ApiProblem("not-found", "no job is known for this path")


def kind_of(head: bytes) -> str:
    """The media type, from the first bytes of a file; its name does not matter."""
    for magic, kind in IMAGES.items():
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not just the last character, cut in two
            return BINARY
        text = head[: error.start].decode()
    return TEXT if all(character.isprintable() or character in "\t\r\n\f\x1b" for character in text) else BINARY


def sent_content(content: OpenContent, transfers: SlowWork, caller: str, *, is_head: bool) -> Response:
    """Sends an open file, and closes it. Gives back the slot that the caller has taken."""
    how = "inline" if content.kind in (TEXT, *IMAGE_TYPES) else "attachment"
    headers = {
        "Content-Length": str(content.size),
        "Content-Disposition": f"{how}; filename*=UTF-8''{quote(content.name.encode(errors='replace'), safe='')}",
        "Content-Security-Policy": SANDBOX,
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        **({"X-Fileq-Cut": "true"} if content.is_cut else {}),
    }

    async def parts() -> AsyncIterator[bytes]:
        at, size = 0, 0 if is_head else content.size
        while at < size:
            part = await transfers.call(partial(os.pread, content.fd, min(PART_BYTES, size - at), at))
            if not part:
                raise OSError("the file was shortened")  # the client gets less than the length that it was told
            at += len(part)
            yield part

    def end() -> None:
        os.close(content.fd)
        transfers.slots.give_back(caller)

    return Streamed(parts(), end, headers=headers, media_type=content.kind)


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


class ReprocessOrder(JobConditions, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which files are enqueued again; all conditions must be met, and one is needed. `path` is one file, `under` a
    directory. `since` and `until` are about the modification of the file, the others about its last job. First
    `dry_run`, then without it and with the `enqueued` of the dry run as `expect`."""

    path: PathText | None = None
    under: PathText | None = None
    limit: Annotated[int, Meta(ge=1, le=REPROCESSED_MAX)] = REPROCESSED_MAX
    dry_run: bool = True
    expect: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None


@ROUTES.add("GET /files", Scope.READ, "files that the ledger knows", problems=("not-allowed",), is_scan=True)
def list_files(request: ApiRequest[FilesQuery, UnsetType]) -> FilePage:
    services, query = request.services, request.query
    _check_shown(services)
    if problems := glob_problems(query.match, "?match", hides_paths=False):
        raise invalid(problems)
    cursor = services.signer.read_cursor(_list_name(query), query.cursor, str) or ""
    under = _directory(query.under)
    page = file_page(request.broker, under, match=query.match, status=query.status, cursor=cursor, limit=query.limit)
    return _with_cursor(page, query, services)


def _list_name(query: FilesQuery) -> str:
    return f"files:{query.under}:{query.match}:{query.status}"


def _with_cursor(page: FilePage, query: FilesQuery, services: Services) -> FilePage:
    return replace(page, next_cursor=services.signer.cursor(_list_name(query), page.next_cursor) or "")


def tree_and_files(services: Services, under: str, depth: int, *, limit: int) -> tuple[FileTree, FilePage]:
    """What GET /files/tree and the first page of GET /files answer, from one scan."""
    _check_shown(services)
    tree, page = file_tree_and_page(services.broker, _directory(under), depth, limit=limit)
    return tree, _with_cursor(page, FilesQuery(under), services)


@ROUTES.add(
    "GET /files/trace", Scope.READ, "the history of a file", problems=("not-allowed", "not-found"), is_scan=True
)
def trace_file(request: ApiRequest[TraceQuery, UnsetType]) -> FileTrace:
    """Its versions with their jobs, newest first, and the job that made it."""
    _check_shown(request.services)
    try:
        return trace(request.broker, known_path(request.broker, request.query.path), RECORDS_MAX)
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        raise ApiProblem("not-found", str(error)) from error


@ROUTES.add("GET /files/tree", Scope.READ, "counts of files by directory", problems=("not-allowed",), is_scan=True)
def show_tree(request: ApiRequest[TreeQuery, UnsetType]) -> FileTree:
    _check_shown(request.services)
    return file_tree(request.broker, _directory(request.query.under), request.query.depth)


@ROUTES.add(
    "POST /files/reprocess",
    Scope.OPERATE,
    "enqueue known files again",
    problems=("not-allowed", "count-changed"),
    is_scan=True,
)
def reprocess_files(request: ApiRequest[NoQuery, ReprocessOrder]) -> ApiAnswer[ReprocessReport]:
    """Enqueues the newest known version of each file again, as `fileq reprocess` does; at most 1,000 files."""
    order = request.body
    _check_shown(request.services)
    wanted = _filter_of(request)
    request.note.is_dry_run = order.dry_run
    places = {"path": order.path, "under": order.under}
    request.note.chose(places | to_builtins(conditions_in(order)))
    planned = _run(request, wanted, is_dry_run=True)
    if order.dry_run:
        return ApiAnswer(planned, count=0)
    if order.expect is None:
        raise invalid_at("/expect", "expect is missing; give the number of files that the dry run would enqueue")
    if planned.enqueued > order.expect * (1 + MARGIN):
        detail = f"{planned.enqueued:,} files would be enqueued, and {order.expect:,} are expected; repeat the dry run"
        raise ApiProblem("count-changed", detail)
    done = _run(request, wanted, is_dry_run=False)
    return ApiAnswer(done, count=done.enqueued)


@ROUTES.add(
    "GET /files/content",
    Scope.FILES,
    "the content of a file",
    serves_limited=True,
    media_type=BINARY,
    other_types=("text/plain", *IMAGE_TYPES),
    problems=("not-allowed", "not-found", "conflict"),
)
async def show_content(request: ApiRequest[ContentQuery, UnsetType]) -> Response:
    """Only of a file that is still the version that its job is about. Texts and images are shown inline, everything
    else is an attachment. If server.files is `preview`, only texts (their first MiB) and small images."""
    services, query = request.services, request.query
    if request.config.server.files not in ("preview", "download"):
        raise ApiProblem("not-allowed", "the content of files is not shown: server.files is not preview or download")
    given_up = asyncio.Event()

    def opened() -> OpenContent:
        path = known_path(request.broker, query.path)
        request.caller.check_path(os.fsdecode(path))
        content = open_content(request.broker, request.config, path, query.job)
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
    assert request.http is not None
    return sent_content(content, services.transfers, caller, is_head=request.http.method == "HEAD")


def _run(request: ApiRequest[NoQuery, ReprocessOrder], wanted: JobFilter, *, is_dry_run: bool) -> ReprocessReport:
    broker, config, order = request.broker, request.config, request.body
    path = known_path(broker, order.path) if order.path is not None else None
    prefix = prefix_of(_directory(order.under or ""))
    return reprocess(broker, config, wanted=wanted, prefix=prefix, path=path, is_dry_run=is_dry_run)


def _filter_of(request: ApiRequest[NoQuery, ReprocessOrder]) -> JobFilter:
    order = request.body
    wanted = filter_of(request, order, at="/")
    if order.path is not None and order.under is not None:
        raise invalid_at("/under", "path and under are both given; give one of them")
    if not wanted.has_conditions and (wanted.state, order.path, order.under) == (None, None, None):
        raise invalid_at("", "no condition is given; for all files, match is '*'")
    return replace(wanted, limit=order.limit)


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


# Uploads: a file's bytes as the body of a PUT, below server.upload_dir. A producer that scans it enqueues the file.
#
# The body is written while it arrives, in parts of UPLOADED_BYTES, so its size does not matter for the memory. A client
# that leaves, is too slow or sends too much leaves nothing behind.

UPLOADED_BYTES = 1 << 20
PATH_BYTES, NAME_BYTES = 3000, 255
DEPTH = MAX_DEPTH // 2  # producers enter that many directories, counted from scan_dir, which may be above upload_dir
SHA_256 = "sha-256"
_DIGEST = re.compile(r"\s*([a-z0-9-]+)=:([A-Za-z0-9+/]*={0,2}):\s*")
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class UploadedFile(Struct, frozen=True):
    """`path` is where the file is now; `is_new` is false if it replaced another."""

    path: str
    size: int
    sha256: str
    is_new: bool


@ROUTES.add(
    "PUT /uploads/{path:path}",
    Scope.ENQUEUE,
    "upload a file; the producer enqueues it",
    serves_limited=True,
    status=201,
    statuses={200: "the file replaced another one"},
    problems=(
        "malformed-request",
        "not-allowed",
        "conflict",
        "precondition-failed",
        "too-large",
        "too-slow",
        "unsupported-media-type",
        "digest-mismatch",
        "no-space",
    ),
    headers=("Content-Digest", "If-None-Match"),
    reads_body=False,
)
async def upload_file(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[UploadedFile]:
    """The body is the file, of any media type. `Content-Digest` (sha-256 or sha-512) is compared; `If-None-Match: *`
    refuses to replace a file. `Content-Range` and `Content-Encoding` are refused: the body is the whole file."""
    services, headers, settings = request.services, request.headers, request.config.server
    if not settings.upload_dir:
        raise ApiProblem("not-found", "server.upload_dir is not set: this server takes no uploads", headers=_CLOSE)
    _check_whole(headers)
    relative = _checked(request.params["path"])
    path = os.path.join(os.path.abspath(settings.upload_dir), relative)
    expected = _expected_digests(headers.get("content-digest"))
    is_exclusive = headers.get("if-none-match", "").strip() == "*"
    most, length = settings.max_upload, headers.get("content-length", "")
    if most is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)

    file = ArrivingFile(os.fsencode(settings.upload_dir), relative.encode())

    def open_file() -> None:
        request.caller.check_path(path)
        file.open()
        if is_exclusive and file.is_replacing:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    assert request.http is not None
    try:
        with services.transfers.slots.held(request.caller.id):
            try:
                await services.transfers.call(open_file)
                await _receive(request.http, file, services, frozenset({SHA_256, *expected}), most)
                for name, value in expected.items():
                    if not hmac.compare_digest(file.digests[name].digest(), value):
                        detail = f"the {name} of the {file.size:,} bytes that arrived differs from Content-Digest"
                        raise ApiProblem("digest-mismatch", detail)
                is_new = await services.transfers.call(lambda: file.commit(is_exclusive=is_exclusive))
            except BaseException:
                file.discard()
                raise
    except OSError as error:
        raise _problem_of(error, relative) from error
    request.note.about_job("", None, path)
    with suppress(ApiProblem, BrokerError):  # the file is stored, and the audit has it too
        await services.pool.call(lambda: note_upload(services.broker, path, request.caller.name, services.now_ms()))
    document = UploadedFile(path, file.size, file.digests[SHA_256].hexdigest(), is_new)
    return ApiAnswer(document, 201 if is_new else 200)


async def _receive(
    http: Request, file: ArrivingFile, services: Services, algorithms: frozenset[str], most: int | None
) -> None:
    received, part = 0, bytearray()
    async for piece in pieces(http):
        received += len(piece)
        if most is not None and received > most:
            raise _too_large(most)
        part += piece
        if len(part) >= UPLOADED_BYTES:
            data, part = bytes(part), bytearray()
            await services.transfers.call(lambda data=data: file.write(data, algorithms))  # type: ignore[misc]
    await services.transfers.call(lambda: file.write(bytes(part), algorithms))


def _check_whole(headers: Mapping[str, str]) -> None:
    """Raises ApiProblem if the body is not the file itself, but a part of it, or is compressed on its way."""
    if "content-range" in headers:
        detail = f"Content-Range is {headers['content-range'][:100]!r}; a file is uploaded whole, without it"
        raise ApiProblem("malformed-request", detail, headers=_CLOSE)
    encoding = headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        detail = f"Content-Encoding is {encoding[:100]!r}; send the bytes that are to be stored, without it"
        raise ApiProblem("unsupported-media-type", detail, headers=_CLOSE)


def _checked(path: str) -> str:
    """The path, if it can only be one below the directory. Raises ApiProblem otherwise."""
    names, raw = path.split("/"), path.encode(errors="replace")
    why = ""
    if not {"", ".", ".."}.isdisjoint(names):
        why = "must have no empty parts, no . and no .."
    elif not path.isprintable() or "�" in path:
        why = "must be printable UTF-8"
    elif len(raw) > PATH_BYTES or max(len(name.encode()) for name in names) > NAME_BYTES:
        why = f"is too long: a name has at most {NAME_BYTES} bytes, a path {PATH_BYTES}"
    elif len(names) > DEPTH:
        why = f"is too deep: it has at most {DEPTH} names"
    elif any(os.fsencode(name).startswith(PREFIX) for name in names):
        why = f"must have no name that begins with {PREFIX.decode()}"
    if why:
        raise _refused("path", f"path is {path[:100]!r}; it {why}")
    return path


def _expected_digests(header: str | None) -> dict[str, bytes]:
    """By algorithm, of the header Content-Digest. Raises ApiProblem for one that can't be compared."""
    found: dict[str, bytes] = {}
    for member in header.split(",") if header is not None else ():
        read = _DIGEST.fullmatch(member)
        try:
            value = base64.b64decode(read[2], validate=True) if read is not None else None
        except binascii.Error:
            value = None
        if read is None or value is None:
            raise _refused("Content-Digest", f"Content-Digest is {member[:100]!r}; it must be like sha-256=:…base64…:")
        if read[1] in (SHA_256, "sha-512"):
            found[read[1]] = value
    if header is not None and not found:
        raise _refused("Content-Digest", "Content-Digest has no algorithm that is known: sha-256 or sha-512")
    return found


def _too_large(most: int) -> ApiProblem:
    return ApiProblem("too-large", f"the file has more than {most:,} bytes, which is server.max_upload", headers=_CLOSE)


def _refused(pointer: str, detail: str) -> ApiProblem:
    problem = invalid_at(pointer, detail)
    problem.headers.update(_CLOSE)
    return problem


def _problem_of(error: OSError, relative: str) -> ApiProblem:
    if isinstance(error, FileExistsError):
        detail = f"there is a file {relative!r} already, and If-None-Match: * is set"
        return ApiProblem("precondition-failed", detail, headers=_CLOSE)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiProblem("no-space", f"{relative!r} can't be stored: {error.strerror}", headers=_CLOSE)
    why = "a part of the path is a link or a file" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
    return ApiProblem("conflict", f"{relative!r} can't be stored: {why}", headers=_CLOSE)
