"""Access to the API: its keys, who the caller is, and the audit of who sent which unsafe request."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from fileq.commands.api_keys import KeyList, KeyOptions, NewKey
from fileq.commands.audit_entries import AuditEntry, AuditPosition, audit_page, key_facts, new_key_facts
from fileq.core.api_key import Scope
from fileq.core.job import stamp
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList

ROUTES = RouteList("keys")


class WantedKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make. Without `expires_at` it does not expire. With `allowed_types` or `path_prefix` it is restricted:
    it enqueues, sees and changes only jobs of these types, and jobs of files below this directory."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(Scope))]
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    allowed_types: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    path_prefix: Annotated[str, Meta(max_length=4096)] = ""


class SaidName(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=50)]


class NamedSession(Struct, frozen=True):
    """`name` is the whole name: that of the person, and that the session began with a one-time link."""

    message: str
    name: str


class RevokedKey(Struct, frozen=True):
    message: str
    id: str


class WhoAmI(Struct, frozen=True):
    """`how` is key, session, basic or proxy. `scopes` includes those that another scope includes."""

    id: str
    name: str
    how: str
    scopes: tuple[Scope, ...]
    allowed_types: tuple[str, ...]
    path_prefix: str
    expires_at: str | None
    is_read_only: bool


@ROUTES.add("GET /keys", Scope.ADMIN, "list keys, without their secrets")
def list_keys(request: ApiRequest[NoQuery, UnsetType]) -> KeyList:
    return request.services.keys.summaries()


@ROUTES.add("POST /keys", Scope.ADMIN, "create a key; it is returned only here", status=201)
async def create_key(request: ApiRequest[NoQuery, WantedKey]) -> ApiAnswer[NewKey]:
    wanted, services = request.body, request.services
    expires_ms = (round(wanted.expires_at.timestamp() * 1000) or -1) if wanted.expires_at is not None else 0
    options = KeyOptions(wanted.name, wanted.scopes, expires_ms, wanted.allowed_types, wanted.path_prefix)
    made = await services.pool.call(lambda: services.keys.create(options))
    services.authentication.forget_cached()
    request.note.changed({}, new_key_facts(made, options))
    return ApiAnswer(made)


@ROUTES.add("DELETE /keys/{id}", Scope.ADMIN, "revoke a key, by its id or name")
async def revoke_key(request: ApiRequest[NoQuery, UnsetType]) -> RevokedKey:
    services = request.services
    known = await services.pool.call(services.keys.load)
    revoked = await services.pool.call(lambda: services.keys.revoke(request.id))
    services.authentication.forget_cached()
    request.note.changed(key_facts(known.get(revoked)), {})
    return RevokedKey("Key revoked", revoked)


@ROUTES.add("GET /whoami", (), "the caller and its scopes", serves_limited=True)
async def who_am_i(request: ApiRequest[NoQuery, UnsetType]) -> WhoAmI:
    caller, only, is_read_only = request.caller, request.caller.restriction, request.config.server.read_only
    scopes, expires = tuple(scope for scope in Scope if scope in caller.scopes), stamp(caller.expires_ms)
    return WhoAmI(caller.id, caller.name, caller.how, scopes, only.types, only.path_prefix, expires, is_read_only)


@ROUTES.add("PUT /whoami/name", Scope.ADMIN, "set display name; only in a session of a one-time link")
async def name_session(request: ApiRequest[NoQuery, SaidName]) -> NamedSession:
    """Only of the own session, and only of one that a one-time link began: a key has the name that its maker gave."""
    services, caller = request.services, request.caller
    if not caller.is_login:
        raise ApiProblem("forbidden", "only a session of the one-time link can be named; a key has its name")
    name = await services.pool.call(lambda: services.keys.name_session(caller.id, request.body.name.strip()))
    services.authentication.forget_cached()
    request.note.changed({"name": caller.name}, {"name": name})
    return NamedSession("The session is named", name)


LIST = "audit"
Text = Annotated[str, Meta(min_length=1, max_length=500)]
_UPLOADS = "/uploads/"
_WITH_PATHS = ("path_prefix", "payload", "match")  # fields of changes


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`cursor` is the `next_cursor` of the page before. `dry_runs=false` leaves out requests that only counted.
    `who`, `action` and `caller_id` choose the entries whose fields are equal to them. A session keeps its
    `caller_id` when it is named."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Text | None = None
    dry_runs: bool = True
    who: Text | None = None
    action: Text | None = None
    caller_id: Text | None = None


class AuditList(Struct, frozen=True):
    """The newest entries first, by `at`. `next_cursor` is null at the end."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


@ROUTES.add("GET /audit", Scope.ADMIN, "who changed what, newest first", area="audit", is_scan=True)
def list_audit(request: ApiRequest[AuditQuery, UnsetType]) -> AuditList:
    """The newest 10,000 requests are kept, and of those that were refused the newest 2,000. An entry is in the list
    within a second."""
    query, signer = request.query, request.services.signer
    chosen = {name: getattr(query, name) for name in ("who", "action", "caller_id")}
    after = signer.read_cursor(LIST, query.cursor, AuditPosition)
    entries, following = audit_page(request.broker, query.limit, after, has_dry_runs=query.dry_runs, **chosen)
    shown = map(without_files, entries) if request.services.hides_paths else entries
    return AuditList(tuple(shown), signer.cursor(LIST, following))


def without_files(entry: AuditEntry) -> AuditEntry:
    """The entry without what may name a file. An entry may be older than the setting that hides them."""
    target = f"{_UPLOADS}…" if entry.target.startswith(_UPLOADS) else entry.target
    changes = tuple(one for one in entry.changes if one.field not in _WITH_PATHS)
    return replace(entry, target=target, changes=changes, path="", detail="")
