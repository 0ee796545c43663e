"""Turns the problems that a server answers with into the exceptions that a broker raises, so that a program handles one
set of exceptions for both transports."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fileq.client.http_connection import HttpReply
from fileq.core.errors import BatchError, BrokerError, BrokerUnavailable, ConfigError, Conflict, FileqError

_PREFIX = "urn:fileq:problem:"
_UNAVAILABLE = (429, 502, 503, 504)


class _FieldError(Struct, frozen=True):
    detail: str = ""


class ServerProblem(Struct, frozen=True):
    """The body of an answer that reports a problem; empty if it is not one of a fileq server."""

    type: str = ""
    title: str = ""
    detail: str = ""
    errors: tuple[_FieldError, ...] = ()

    @property
    def slug(self) -> str:
        return self.type.removeprefix(_PREFIX) if self.type.startswith(_PREFIX) else ""


def problem_in(reply: HttpReply) -> ServerProblem:
    try:
        return msgspec.json.decode(reply.body, type=ServerProblem)
    except (msgspec.DecodeError, ValueError):
        return ServerProblem()


def error_of(reply: HttpReply) -> FileqError:
    """The exception that a direct client would raise."""
    problem = problem_in(reply)
    if problem.slug == "invalid":
        return ConfigError([one.detail for one in problem.errors if one.detail] or [problem.detail])
    if problem.slug == "unauthenticated":
        return ConfigError(f"the server does not accept the key: {problem.detail}")
    if problem.slug == "batch-closed":
        return BatchError(problem.detail)
    if problem.slug == "precondition-failed":
        return Conflict(problem.detail)
    if reply.status in _UNAVAILABLE:
        return BrokerUnavailable(problem.detail or f"the server answered {reply.status}")
    if problem.slug:
        return BrokerError(problem.detail or problem.title)
    if 300 <= reply.status < 400:
        where = reply.headers.get("location", "")[:200]
        return BrokerError(f"the server redirects to {where!r}; redirects are not followed: give that address")
    return BrokerError(f"the server answered {reply.status} without a reason; is it a fileq server?")
