"""Refuses requests that another site made a browser send. Holds where a browser adds the credentials by itself."""

from __future__ import annotations

from collections.abc import Mapping

from fileq.server.problems import ApiProblem


def check_same_site(headers: Mapping[str, str], scheme: str, host: str) -> None:
    """Raises ApiProblem unless the browser says that the request comes from a page of this server.

    Browsers send Sec-Fetch-Site; older ones, and all over plain http on other hosts than localhost, only Origin."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
        raise ApiProblem("cross-site", f"Sec-Fetch-Site is {site[:40]!r}; with a session it must be same-origin")
    origin = headers.get("origin")
    if origin is None:
        raise ApiProblem(
            "cross-site", "with a session, Sec-Fetch-Site or Origin is required; programs send a key instead"
        )
    if origin.lower() != f"{scheme}://{host}".lower():
        raise ApiProblem("cross-site", f"Origin is {origin[:100]!r}; with a session it must be {scheme}://{host}")


def check_not_cross_site(headers: Mapping[str, str]) -> None:
    """Raises ApiProblem if the browser says that another site, or another port of this host, caused a request that
    changes nothing, but costs something: a stream, or a check. `none` is an address that a person typed; over plain
    http a browser says nothing."""
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none"):
        detail = f"Sec-Fetch-Site is {site[:40]!r}; open it from a page of this server, or send a key"
        raise ApiProblem("cross-site", detail)
