"""Files: the directories with what waits and what died in them, the files of one, the history and content of a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.brokers.types import Record
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS
from fileq.commands.action_log import ACTIONS, UPLOADS, last_upload
from fileq.commands.admin.pauses import HISTORIES
from fileq.config.schema import AfterSettings
from fileq.core.api_key import Scope
from fileq.core.job import State, stamp
from fileq.queries.documents import JobDocument
from fileq.queries.file_pages import EXPIRED, DirectoryCounts, FileStatus, FileTree
from fileq.queries.job_queries import FileTrace
from fileq.server.api.file_endpoints import (
    IMAGE_TYPES,
    PREVIEW_IMAGE,
    TEXT,
    FilesQuery,
    TraceQuery,
    kind_of,
    known_path,
    known_version,
    list_files,
    open_known,
    trace_file,
    tree_and_files,
)
from fileq.server.api.job_endpoints import PathText
from fileq.server.console.job_steps import steps_of
from fileq.server.console.view import LONG_SCAN_S, UNMARKED, ViewList, ViewRequest, mark_of_death, read_notes
from fileq.server.problems import ApiProblem

VIEWS = ViewList()

STATUSES: tuple[str, ...] = get_args(FileStatus)
ROWS_MAX = 60  # of the tree: with more, only the next level is shown
DEPTH = 2


class FileViewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`job` chooses the version that is previewed."""

    path: PathText
    job: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class TreeRow(Struct, frozen=True):
    counts: DirectoryCounts
    name: str
    level: int


@VIEWS.add("/files", "Files", "files.html", is_scan=True, timeout_s=LONG_SCAN_S, letter="f")
def files(request: ViewRequest[FilesQuery]) -> Mapping[str, Any]:
    """Without `under` it shows producer.scan_dir. The list without conditions comes from the scan of the tree. With
    conditions it is a scan of its own, so the tree is left out."""
    query, upload_dir = request.query, request.config.server.upload_dir
    under = query.under or os.path.abspath(request.config.producer.scan_dir)
    tree: FileTree | None = None
    if query.match or query.status or query.cursor:
        found = request.ask(list_files, replace(query, under=under))
    else:
        tree, found = tree_and_files(request.services, under, DEPTH, limit=query.limit)
    order = {"under": under, "match": query.match, "status": query.status}
    return {
        "under": under,
        "trail": trail(under),
        "tree": tree,
        "rows": tree_rows(tree.directories, under) if tree is not None else [],
        "found": found,
        "statuses": STATUSES,
        "order": {name: value for name, value in order.items() if value},
        "may_reprocess": request.has(Scope.OPERATE) and query.status != EXPIRED,
        "upload_dir": upload_dir and os.path.abspath(upload_dir),
        "upload_to": upload_target(upload_dir, under),
        "may_upload": request.has(Scope.ENQUEUE),
    }


def tree_rows(directories: Sequence[DirectoryCounts], under: str) -> list[TreeRow]:
    """The chosen directory, then those below it."""
    top = under.rstrip("/")
    rows = []
    for one in directories:
        below = one.directory.removeprefix(top).strip("/")
        rows.append(TreeRow(one, below.rpartition("/")[2] or one.directory, below.count("/") + 1 if below else 0))
    return [row for row in rows if row.level < DEPTH] if len(rows) > ROWS_MAX else rows


def trail(directory: str) -> list[tuple[str, str]]:
    """The directories above this one and itself, from the top: (name, path)."""
    names = [name for name in directory.split("/") if name]
    return [("/", "/"), *((name, "/" + "/".join(names[: i + 1])) for i, name in enumerate(names))]


def upload_target(upload_dir: str, under: str) -> str:
    """The chosen directory below that for uploads, with a final slash; "" for the directory for uploads itself. A name
    with a backslash may be the escape of one that is not UTF-8, which an upload can't have."""
    top = os.path.abspath(upload_dir).rstrip("/") if upload_dir else ""
    below = under.rstrip("/").removeprefix(f"{top}/") if top and under.startswith(f"{top}/") else ""
    return f"{below}/" if below and "\\" not in below else ""


@VIEWS.add("/files/trace", "File", "file.html", is_scan=True, timeout_s=LONG_SCAN_S)
def file(request: ViewRequest[FileViewQuery]) -> Mapping[str, Any]:
    """A job that waits has cost a round trip to find out why. Then who retried it before, the pauses of its queue,
    and who uploaded the file are not shown here."""
    query = request.query
    found = request.ask(trace_file, TraceQuery(query.path))
    is_waiting = any(one.job is not None and State(one.job.status).is_waiting for one in found.versions)
    notes = read_notes(request, () if is_waiting else (ACTIONS, HISTORIES, ACKNOWLEDGEMENTS, UPLOADS))
    jobs = [one.job for one in found.versions if one.job is not None]
    newest = found.versions[0].job if found.versions else None
    preview = preview_of(request, found.path, query.job, signature=known_signature(found, query.job))
    is_seen = preview is not None and preview.kind != "none"
    return {
        "trace": found,
        "fate": fate_of(found, newest, request.config.worker.after, is_seen=is_seen) if newest else "",
        "mark": mark_of_death(newest.fingerprint, newest.completed_at, notes.acknowledgements) if newest else UNMARKED,
        "upload": last_upload(found.path, notes.uploads),
        "directory": found.path.rpartition("/")[0] or "/",
        "name": found.path.rpartition("/")[2],
        "newest": newest,
        "steps": {job.id: steps_of(job, notes.actions, notes.past_pauses) for job in jobs},
        "modified": lambda version: stamp((version.modified_ns or 0) // 1_000_000),
        "preview": preview,
        "may_download": may_see_content(request) and request.config.server.files == "download",
        "is_known": any(version.is_in_ledger for version in found.versions),
    }


def fate_of(trace: FileTrace, newest: JobDocument, after: AfterSettings, *, is_seen: bool) -> str:
    """Where the file is after its newest job has ended, and what tries it again; "" before. `is_seen`: this server has
    just read the version. `after` is the setting of this server; workers with another one tell only where they moved a
    file."""
    rule = {"completed": after.completed, "dead": after.dead, "cancelled": "keep"}.get(newest.status)
    if rule is None:
        return ""
    if newest.moved_to:
        is_here = newest.moved_to == trace.path
        place = f"The file was moved here from {newest.path}." if is_here else f"Moved to {newest.moved_to}."
    elif trace.missing_since and not is_seen:
        place = "The file is gone."
    elif rule == "delete" and not is_seen:
        place = "File deleted (worker.after)."
    else:
        place = "File kept." if rule == "keep" or is_seen else ""
    tried = {"dead": "It won't be retried automatically.", "cancelled": "It won't be retried automatically."}
    return f"{place} {tried.get(newest.status, '')}".strip()


def known_signature(trace: FileTrace, job_id: str | None) -> str | None:
    """That of the version that the job is about; without a job that of the newest one in the ledger. None if the trace
    does not say it, as for a job that wrote the file."""
    for version in trace.versions:
        made = version.job.outputs if version.job is not None else ()
        if version.is_newest if job_id is None else version.job_id == job_id:
            return version.signature if all(one.path != trace.path for one in made) else None
    return None


# What a view shows of a file's content. It is inert: text is escaped, other bytes are a hex dump, and an image is
# loaded from the API, which sends it in a sandbox. Everything else can only be downloaded.
#
# The same files as in GET /files/content: known, below a root, still the same version. Nothing is shown unless
# server.files is `preview` or `download` and the caller has the scope `files`.

TEXT_BYTES = 64 << 10
HEX_BYTES = 2 << 10
_ROW = 16


class Preview(Struct, frozen=True):
    """`none` has the reason as its text. `is_cut`: the file is longer than what is shown."""

    kind: Literal["text", "hex", "image", "none"]
    text: str = ""
    size: int | None = None
    is_cut: bool = False


def may_see_content(request: ViewRequest[Any]) -> bool:
    """Looking at files changes nothing, so a read-only server allows it."""
    is_shown = request.config.server.files in ("preview", "download")
    return is_shown and Scope.FILES in request.caller.scopes


def preview_of(
    request: ViewRequest[Any],
    path: str,
    job_id: str | None = None,
    *,
    record: Record | None = None,
    signature: str | None = None,
) -> Preview | None:
    """Of the version that the job is about; without a job of the newest one. None if the caller may not see it.

    `record` is that of the job, and `signature` that of the version, if the view has read them already."""
    if not path or not may_see_content(request):
        return None
    broker = request.broker
    try:
        raw = known_path(broker, path)
        fd, size = open_known(request.config, raw, signature or known_version(broker, raw, job_id, record))
    except ApiProblem as problem:
        return Preview("none", problem.detail)
    try:
        return preview_of_head(os.pread(fd, TEXT_BYTES, 0), size)
    except OSError as error:
        return Preview("none", f"the file can't be read: {error.strerror}")
    finally:
        os.close(fd)


def preview_of_head(head: bytes, size: int) -> Preview:
    """`head` are the first bytes of a file of this size."""
    kind = kind_of(head)
    if kind in IMAGE_TYPES:
        if size > PREVIEW_IMAGE:
            return Preview("none", "the image is too large", size)
        return Preview("image", size=size)
    if kind == TEXT:
        return Preview("text", head.decode(errors="ignore").expandtabs(4), size, size > len(head))
    return Preview("hex", hex_dump(head[:HEX_BYTES]), size, size > HEX_BYTES)


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: where they are, their hexadecimal digits, and those that are printable ASCII."""
    lines = []
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<{3 * _ROW - 1}}  {text}")
    return "\n".join(lines)
