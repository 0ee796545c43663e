"""Globs that come with a request."""

from __future__ import annotations

from fileq.core.errors import ConfigError
from fileq.queries.job_filter import path_matcher
from fileq.server.problems import FieldProblem


def glob_problems(pattern: str | None, pointer: str, *, hides_paths: bool) -> list[FieldProblem]:
    """Why a glob can't be used; none if it can, or if there is none. `pointer` is where it is in the request. A server
    that hides paths compares none: otherwise a client could guess them piece by piece."""
    if pattern is None:
        return []
    if hides_paths:
        return [FieldProblem(pointer, "match is set, but server.files is none: this server hides paths")]
    try:
        path_matcher(pattern)
    except ConfigError as error:
        return [FieldProblem(pointer, f"match is {pattern!r}; {problem}") for problem in error.problems]
    return []
