"""Uploads: a file's bytes as the body of a PUT, below server.upload_dir. A producer that scans it enqueues the file.

The body is written while it arrives, in parts of PART_BYTES, so its size does not matter for the memory. A client that
leaves, is too slow or sends too much leaves nothing behind.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hmac
import os
import re
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, UnsetType
from starlette.requests import Request

from fileq.commands.action_log import note_upload
from fileq.core.api_key import Scope
from fileq.core.errors import BrokerError
from fileq.files.exclusive_move import PREFIX
from fileq.files.paths import MAX_DEPTH
from fileq.files.uploads import ArrivingFile
from fileq.server.decoding import invalid_at
from fileq.server.limits import pieces
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList
from fileq.server.services import Services

ROUTES = RouteList("files")

PART_BYTES = 1 << 20
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
        if len(part) >= PART_BYTES:
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
