"""What a page shows of a file's content. It is inert: text is escaped, other bytes are a hex dump, and an image is
loaded from the API, which sends it in a sandbox. Everything else can only be downloaded.

The same files as in GET /files/content: known, below a root, still the same version. Nothing is shown unless
server.files is `preview` or `download` and the caller has the scope `files`.
"""

from __future__ import annotations

import os
from typing import Literal

from msgspec import Struct

from fileq.brokers.types import Record
from fileq.core.api_key import Scope
from fileq.server.api.file_endpoints import known_path
from fileq.server.console.page import PageRequest
from fileq.server.file_content import IMAGE_TYPES, PREVIEW_IMAGE, TEXT, kind_of, open_known, open_version
from fileq.server.problems import ApiProblem

TEXT_BYTES = 64 << 10
HEX_BYTES = 2 << 10
_ROW = 16


class Preview(Struct, frozen=True):
    """`none` has the reason as its text. `is_cut`: the file is longer than what is shown."""

    kind: Literal["text", "hex", "image", "none"]
    text: str = ""
    size: int | None = None
    is_cut: bool = False


def may_see_content(request: PageRequest) -> bool:
    """Looking at files changes nothing, so a read-only server allows it."""
    is_shown = request.services.config.server.files in ("preview", "download")
    return is_shown and Scope.FILES in request.caller.scopes


def may_download(request: PageRequest) -> bool:
    return may_see_content(request) and request.services.config.server.files == "download"


def preview_of(
    request: PageRequest,
    path: str,
    job_id: str | None = None,
    *,
    record: Record | None = None,
    signature: str | None = None,
) -> Preview | None:
    """Of the version that the job is about; without a job of the newest one. None if the caller may not see it.

    `record` is that of the job, and `signature` that of the version, if the page has read them already."""
    if not path or not may_see_content(request):
        return None
    services = request.services
    try:
        raw = known_path(services.broker, path)
        if signature is not None:
            fd, size = open_version(services.config, raw, signature)
        else:
            fd, size = open_known(services.broker, services.config, raw, job_id, record)
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
            return Preview("none", "the image is too large to be shown here", size)
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
