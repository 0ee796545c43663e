"""The content of a file for a client: which file may be shown, how it is opened, and as what it is sent.

A file is shown only if the ledger or a job's record knows its path, if it is below a root, and if it is still the
version that is known there. No link is followed, and what is checked is the open descriptor. What a browser could run,
such as HTML or SVG, is sent as plain text or as an attachment, and in a sandbox.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.config import Config
from fileq.core.job import decode_or_none
from fileq.files.beneath import LeadsOutside, open_without_links
from fileq.files.version import changed_version
from fileq.queries.job_summary import file_place
from fileq.server.live_streams import until_first, until_gone
from fileq.server.problems import ApiProblem
from fileq.server.slow_work import SlowWork

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
    fd, size = open_known(broker, config, path, job_id)
    try:
        return _described(fd, os.fsdecode(os.path.basename(path)), size, config.server.files)
    except BaseException:
        os.close(fd)
        raise


def open_known(
    broker: FullBroker, config: Config, path: bytes, job_id: str | None, record: Record | None = None
) -> tuple[int, int]:
    """A descriptor of the file, which the caller closes, and its size. Blocks, and raises ApiProblem. `record` is that
    of the job, if the caller has read it."""
    return open_version(config, path, _known_version(broker, path, job_id, record))


def open_version(config: Config, path: bytes, signature: str) -> tuple[int, int]:
    """As open_known(), for a version that the ledger or a record knows."""
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


def _known_version(broker: FullBroker, path: bytes, job_id: str | None, record: Record | None) -> str:
    """The signature of the version that the given job, the ledger, or the job that made the file knows."""
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


def _described(fd: int, name: str, size: int, files: str) -> OpenContent:
    kind = kind_of(os.pread(fd, 64 << 10, 0))
    if files == "preview":
        if kind == BINARY or (kind in IMAGE_TYPES and size > PREVIEW_IMAGE):
            raise ApiProblem("not-allowed", "server.files is preview: only texts and small images are shown")
        if kind == TEXT and size > PREVIEW_BYTES:
            return OpenContent(fd, name, kind, PREVIEW_BYTES, is_cut=True)
    return OpenContent(fd, name, kind, size, is_cut=False)


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


class ContentResponse(StreamingResponse):
    """Sends an open file, and closes it. Gives back the slot that the caller has taken."""

    def __init__(self, content: OpenContent, transfers: SlowWork, caller: str) -> None:
        is_shown = content.kind in (TEXT, *IMAGE_TYPES)
        how = "inline" if is_shown else "attachment"
        headers = {
            "Content-Length": str(content.size),
            "Content-Disposition": f"{how}; filename*=UTF-8''{quote(content.name.encode(errors='replace'), safe='')}",
            "Content-Security-Policy": SANDBOX,
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"X-Fileq-Cut": "true"} if content.is_cut else {}),
        }
        super().__init__((), headers=headers, media_type=content.kind)
        self._content = content
        self._transfers = transfers
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_first(self._send_all(scope["method"], send), until_gone(receive, "http.disconnect"))
        finally:
            os.close(self._content.fd)
            self._transfers.slots.give_back(self._caller)

    async def _send_all(self, method: str, send: Send) -> None:
        """A file that was shortened meanwhile ends the connection before its length: the client notices."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        at, size = 0, self._content.size if method != "HEAD" else 0
        while at < size:
            part = await self._transfers.call(partial(os.pread, self._content.fd, min(PART_BYTES, size - at), at))
            if not part:
                return
            at += len(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
