"""Errors as RFC 9457 describes them: application/problem+json with a stable slug in `type`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from starlette.responses import Response

from fileq.core.errors import BatchError, BrokerError, BrokerUnavailable, ConfigError, Conflict, JobError, Unknown

MEDIA_TYPE = "application/problem+json"

# Slug: status and title. Clients compare slugs, so none is ever renamed.
PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed-request": (400, "The request can't be read"),
    "unauthenticated": (401, "No valid key or session"),
    "forbidden": (403, "The key lacks the scope"),
    "not-allowed": (403, "The key or the server does not allow it"),
    "cross-site": (403, "The request came from another site"),
    "read-only": (403, "The server is read-only"),
    "not-found": (404, "The resource does not exist"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "not-acceptable": (406, "The answer has no media type that Accept allows"),
    "too-slow": (408, "The body did not arrive in time"),
    "conflict": (409, "The present state does not allow it"),
    "duplicate": (409, "A job of another caller is there already"),
    "batch-closed": (409, "The batch takes no more jobs"),
    "count-changed": (409, "More jobs match than expected"),
    "precondition-failed": (412, "The resource is not in the expected state"),
    "too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The media type of the body is not supported"),
    "wrong-host": (421, "The Host is not a name of this server"),
    "invalid": (422, "The request is not valid"),
    "digest-mismatch": (422, "The body does not have the digest in Content-Digest"),
    "idempotency-mismatch": (422, "The Idempotency-Key was used with another body"),
    "vetoed": (422, "A before_enqueue function refused the job"),
    "upgrade-required": (426, "The endpoint is a WebSocket"),
    "precondition-required": (428, "If-Match is required"),
    "rate-limited": (429, "Too many requests"),
    "internal": (500, "A defect in fileq"),
    "broker-away": (503, "The broker is unavailable"),
    "busy": (503, "The server does too much at the same time"),
    "stopping": (503, "The server is stopping"),
    "no-space": (507, "The disk of the uploads is full"),
}


class FieldProblem(Struct, frozen=True):
    """`pointer` is a JSON pointer into the body, or the name of a parameter after `?`."""

    pointer: str
    detail: str


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """The body of an answer that reports a problem."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[FieldProblem, ...] = ()


class ApiProblem(Exception):
    """Raised by anything that handles a request; becomes the answer."""

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{slug}: {detail}")
        self.slug = slug
        self.detail = detail
        self.errors = tuple(errors)
        self.status = PROBLEMS[slug][0]
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def response(self, request_id: str) -> Response:
        status, title = PROBLEMS[self.slug]
        type, instance = f"urn:fileq:problem:{self.slug}", f"urn:fileq:request:{request_id}"
        document = ProblemDocument(type, title, status, self.detail, instance, self.errors)
        return Response(msgspec.json.encode(document), status, self.headers, MEDIA_TYPE)


def broker_away(detail: str) -> ApiProblem:
    return ApiProblem("broker-away", detail, retry_after_s=1)


def problem_of(error: Exception) -> ApiProblem | None:
    """The problem that an error of fileq stands for; None for a defect."""
    if isinstance(error, ApiProblem):
        return error
    if isinstance(error, BrokerUnavailable):
        return broker_away(str(error))
    if isinstance(error, ConfigError):
        errors = [FieldProblem("", one) for one in error.problems]
        return ApiProblem("invalid", "; ".join(error.problems), errors=errors)
    if isinstance(error, Unknown):
        return ApiProblem("not-found", str(error))
    if isinstance(error, Conflict):
        return ApiProblem("precondition-failed", str(error))
    if isinstance(error, BatchError):
        return ApiProblem("batch-closed", str(error))
    if isinstance(error, BrokerError | JobError):
        return ApiProblem("conflict", str(error))
    return None
