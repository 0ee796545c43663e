"""Globs that come with a request. They are checked before they are compiled or compared."""

from __future__ import annotations

import re

from fileq.client.job_filter import path_matcher
from fileq.core.errors import ConfigError
from fileq.server.problems import FieldProblem

STARS_MAX = 6
BRACES_MAX = 50
_STARS = re.compile(r"\*+")


def glob_problems(pattern: str | None, pointer: str, *, hides_paths: bool) -> list[FieldProblem]:
    """Why a glob can't be used; none if it can, or if there is none. `pointer` is where it is in the request. A server
    that hides paths compares none: otherwise a client could guess them piece by piece."""
    if pattern is not None and hides_paths:
        return [FieldProblem(pointer, "match is set, but server.files is none: this server hides paths")]
    why = _why_not(pattern) if pattern is not None else ""
    return [FieldProblem(pointer, f"match is {pattern!r}; {why}")] if why else []


def _why_not(pattern: str) -> str:
    """Why a glob from a request can't be used; empty if it can. A short text may stand for a million patterns, or take
    years to compare with a long name."""
    if len(_STARS.findall(pattern)) > STARS_MAX:
        return f"it must have at most {STARS_MAX} stars"
    if ".." in pattern and "{" in pattern:
        return "it must not have a range in braces; list the words, such as {pdf,txt}"
    if pattern.count("{") > 1 or pattern.count(",") > BRACES_MAX:
        return f"it must have at most one pair of braces, with at most {BRACES_MAX} words"
    try:
        path_matcher(pattern)
    except ConfigError as error:
        return "; ".join(error.problems)
    return ""
