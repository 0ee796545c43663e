"""ETag, If-None-Match and If-Match; Idempotency-Key. Endpoints call these."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fileq.server.identity import Caller
from fileq.server.problems import ApiProblem, FieldProblem
from fileq.server.signing import Signer

KEY_LENGTH = 255


def etag_of(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def is_unchanged(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the caller has this representation already (If-None-Match)."""
    given = headers.get("if-none-match", "")
    return given.strip() == "*" or etag in [part.strip().removeprefix("W/") for part in given.split(",")]


def check_etag(headers: Mapping[str, str], etag: str | None) -> None:
    """For PUT: raises ApiProblem 428 without If-Match, and 412 if the resource is another one than the caller saw.
    `etag` is that with which GET would answer now; None if there is no such resource: then a PUT without If-Match
    creates one."""
    given = headers.get("if-match")
    if etag is None:
        if given is not None:
            raise ApiProblem("precondition-failed", "the resource does not exist; send If-None-Match: * to create it")
        return
    if headers.get("if-none-match", "").strip() == "*":
        raise ApiProblem("precondition-failed", "the resource exists already, and If-None-Match: * is set")
    if given is None:
        raise ApiProblem("precondition-required", "send If-Match with the ETag of the last GET")
    if given.strip() != "*" and etag not in [part.strip() for part in given.split(",")]:
        raise ApiProblem(
            "precondition-failed", f"the resource has changed; its ETag is now {etag}", headers={"ETag": etag}
        )


class IdempotentRequest(Struct, frozen=True):
    """`job_id` follows from the key and the caller, so a repeat finds the same job. `digest` is that of the body."""

    job_id: str
    digest: str


def idempotent_request(
    headers: Mapping[str, str], caller: Caller, body: bytes, signer: Signer
) -> IdempotentRequest | None:
    """None without an Idempotency-Key. Raises ApiProblem for one that can't be used. Only servers can compute the id of
    the job, so that another caller can't take it before."""
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
        detail = f"Idempotency-Key must be 1 to {KEY_LENGTH} printable ASCII characters"
        raise ApiProblem("invalid", detail, errors=[FieldProblem("", detail)])
    digest = signer.digest("idempotency-key", f"{caller.id}\0{key}")
    return IdempotentRequest(str(uuid.UUID(bytes=digest[:16], version=4)), _canonical_digest(body))


def _canonical_digest(body: bytes) -> str:
    """The same for two spellings of one JSON value."""
    canonical = msgspec.json.encode(msgspec.json.decode(body), order="sorted") if body else b""
    return hashlib.sha256(canonical).hexdigest()[:32]
