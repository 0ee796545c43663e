"""The path below which a proxy serves this server."""

from __future__ import annotations


def without_base(path: str, base_path: str) -> str:
    """The path of a request without `server.base_path`. Proxies may remove it or leave it in."""
    return path.removeprefix(base_path) if base_path and path.startswith(f"{base_path}/") else path
