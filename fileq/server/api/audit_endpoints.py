"""The audit list: who sent which unsafe request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType

from fileq.core.api_key import Scope
from fileq.server.audit import AuditEntry, AuditPosition, audit_page
from fileq.server.route import ApiRequest, Route

LIST = "audit"


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`cursor` is the `next_cursor` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class AuditList(Struct, frozen=True):
    """The newest entries first. `next_cursor` is null at the end."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


def list_audit(request: ApiRequest[AuditQuery, UnsetType]) -> AuditList:
    """The newest 10,000 requests are kept. An entry is in the list within a second."""
    query, signer = request.query, request.services.signer
    after = signer.read_cursor(LIST, query.cursor, AuditPosition) if query.cursor is not None else None
    entries, following = audit_page(request.services.broker, query.limit, after)
    return AuditList(tuple(entries), signer.cursor(LIST, following) if following is not None else None)


ROUTES = (
    Route(
        method="GET",
        path="/audit",
        area="audit",
        scopes=(Scope.ADMIN,),
        summary="who changed what, newest first",
        function=list_audit,
        query=AuditQuery,
        response=AuditList,
        is_scan=True,
    ),
)
