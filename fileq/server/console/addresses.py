"""The addresses that templates link to: all are below the base path of the server."""

from __future__ import annotations

from typing import Any

from fileq.server.console.rendering import query_string
from fileq.server.console.static_files import versioned


def addresses_below(base: str) -> dict[str, Any]:
    """For a template: `url(path, **query)` of a page, `static(name)` of a file with its version, and the `base`."""

    def url(path: str, /, **query: object) -> str:
        return f"{base}{path}{query_string(**query)}"

    def static(name: str) -> str:
        return f"{base}/static/{versioned(name)}"

    return {"url": url, "static": static, "base": base}
