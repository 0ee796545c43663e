"""The path of a request: below which path a proxy serves this server, and slashes that are part of a name.

Other programs may push jobs whose ids contain a slash. In an address such a slash is written as %2F. A decoded path
would not tell it from one that separates two parts, so it is ENCODED_SLASH there until a route has found its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

ENCODED_SLASH = "\udc2f"  # decoding never yields it


def request_path(scope: Mapping[str, Any], base_path: str) -> str:
    """The decoded path of a request without `server.base_path`. Proxies may remove that or leave it in."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        path = "/".join(unquote(part).replace("/", ENCODED_SLASH) for part in raw.decode("latin-1").split("/"))
    return path.removeprefix(base_path) if base_path and path.startswith(f"{base_path}/") else path


def plain_path(path: str) -> str:
    """The path, or a part of it, as people write it."""
    return path.replace(ENCODED_SLASH, "/")


def quoted_path(path: str) -> str:
    """The path as an address has it."""
    return "/".join(quote(plain_path(part), safe="", errors="surrogateescape") for part in path.split("/"))
