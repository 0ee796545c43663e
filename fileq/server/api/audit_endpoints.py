"""The audit list: who sent which unsafe request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.commands.audit_entries import AuditEntry, AuditPosition, audit_page
from fileq.core.api_key import Scope
from fileq.server.route import ApiRequest, Route

LIST = "audit"
_UPLOADS = "/uploads/"
_WITH_PATHS = ("path_prefix", "payload", "match")  # fields of changes


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`cursor` is the `next_cursor` of the page before. `dry_runs=false` leaves out requests that only counted.
    `who`, `action` and `caller_id` choose the entries whose fields are equal to them. A session keeps its
    `caller_id` when it is named."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    dry_runs: bool = True
    who: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    action: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    caller_id: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class AuditList(Struct, frozen=True):
    """The newest entries first. `next_cursor` is null at the end."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


def list_audit(request: ApiRequest[AuditQuery, UnsetType]) -> AuditList:
    """The newest 10,000 requests are kept, and of those that were refused the newest 2,000. An entry is in the list
    within a second."""
    query, services, signer = request.query, request.services, request.services.signer
    after = signer.read_cursor(LIST, query.cursor, AuditPosition) if query.cursor is not None else None
    entries, following = audit_page(
        services.broker,
        query.limit,
        after,
        has_dry_runs=query.dry_runs,
        who=query.who,
        action=query.action,
        caller_id=query.caller_id,
    )
    shown = map(without_files, entries) if services.hides_paths else entries
    return AuditList(tuple(shown), signer.cursor(LIST, following) if following is not None else None)


def without_files(entry: AuditEntry) -> AuditEntry:
    """The entry without what may name a file. An entry may be older than the setting that hides them."""
    target = f"{_UPLOADS}…" if entry.target.startswith(_UPLOADS) else entry.target
    changes = tuple(one for one in entry.changes if one.field not in _WITH_PATHS)
    return replace(entry, target=target, changes=changes, path="", detail="")


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
