"""The stylesheet, the scripts and the icon: a fixed list of files, read once."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.responses import Response

from fileq.server.problems import ApiProblem

MEDIA_TYPES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "favicon.svg": "image/svg+xml",
}
_A_YEAR = "public, max-age=31536000, immutable"


@cache
def content_of(name: str) -> bytes:
    return files("fileq.server.console").joinpath("static", name).read_bytes()


@cache
def versioned(name: str) -> str:
    """The name with a part of its digest: browsers keep a version for a year, and never use an old one."""
    return f"{name}?v={hashlib.sha256(content_of(name)).hexdigest()[:12]}"


def static_response(name: str, version: str) -> Response:
    """Raises ApiProblem for a name that is not in the list."""
    if name not in MEDIA_TYPES:
        raise ApiProblem("not-found", f"there is no file {name[:100]!r}")
    response = Response(content_of(name), media_type=MEDIA_TYPES[name])
    response.headers["Cache-Control"] = _A_YEAR if versioned(name).endswith(f"?v={version}") else "no-cache"
    return response
