"""The audit in words: who did what, and the page that shows what it was done to. Only reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct

from fileq.commands.audit_entries import AuditChange, AuditEntry
from fileq.server.api.audit_endpoints import AuditQuery, list_audit
from fileq.server.console.page import PageRequest
from fileq.server.console.rendering import path_part, query_string
from fileq.server.identity import Caller
from fileq.server.routes import ROUTES

# The page below which the target of a request is shown, by the first part of its path.
_PAGES = {"jobs": "jobs/", "batches": "batches/", "schedules": "scheduled/edit/", "webhooks": "webhooks/"}
_OVERVIEWS = {
    "queues": "queues",
    "dead": "dead",
    "files": "files",
    "uploads": "files",
    "keys": "admin",
    "operations": "admin/operations",
}
_NOT_NAMES = ("actions", "bulk", "preview")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z| UTC)")
_ABOUT_JOBS = ("/jobs", "/dead", "/files", "/batches", "/queues", "/operations")
_SCHEDULES = "/schedules/"
_GROUPS = "/dead/groups/"  # the detail of such an entry is the cause
_VERB = "action: "  # how the detail of an action on many jobs begins
# What people call it, if that is not what the documentation of the API says.
_WORDS = {
    "retry_job": "retry a dead job",
    "run_schedule": "run a schedule now",
    "upload_file": "upload a file",
    "name_session": "say the own name",
    "failed_login": "log in with a wrong password, key or link",
    "create_login_link": "create a one-time link",
}
_HINTS = {"upload_file": "a job for it follows by itself; the page of the file shows it"}
# The same for a request that may make something or change it: the words for each.
_MADE_OR_CHANGED = {
    "put_schedule": ("define a schedule", "change a schedule"),
    "put_acknowledgement": ("acknowledge a cause", "acknowledge a cause again"),
}


class AuditPageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`mine`: only what this caller did, also before its session got a name."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    dry_runs: bool = False
    who: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    action: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    mine: bool = False


class AuditRow(Struct, frozen=True):
    """An entry in words. `page` shows its target, "" if none does; `jobs` is None if it is not about jobs. `target` is
    what people know: the job, or the target itself. `detail` says which jobs or files were chosen. `changes` are those
    of the entry, with times as people read them."""

    entry: AuditEntry
    action: str
    page: str
    result: str
    jobs: int | None
    target: str
    detail: str
    changes: tuple[AuditChange, ...]


def audit(request: PageRequest) -> Mapping[str, Any]:
    query: AuditPageQuery = request.query
    wanted = AuditQuery(
        query.limit, query.cursor, query.dry_runs, query.who, query.action, request.caller.id if query.mine else None
    )
    found = request.ask(list_audit, wanted)
    flags = {name: "true" if getattr(query, name) else "" for name in ("dry_runs", "mine")}
    chosen = flags | {"who": query.who or "", "action": query.action or ""}
    return {
        "entries": [in_words(entry) for entry in found.entries],
        "next_cursor": found.next_cursor,
        "is_later_page": query.cursor is not None,
        "has_dry_runs": query.dry_runs,
        "chosen": chosen,
        "mine_words": own_words(request.caller),
        "action_word": summaries().get(query.action or "", query.action),
    }


def own_words(caller: Caller) -> str:
    """Whose entries are the own ones: a person may have several keys, and an entry is about one of them."""
    if caller.is_login:
        return "this session"
    return caller.name if caller.id.startswith("user:") else f"the key {caller.name}"


def in_words(entry: AuditEntry) -> AuditRow:
    target, page = _target(entry)
    result = "done" if entry.result < 400 else "refused" if entry.result < 500 else "failed"
    verb, _, rest = entry.detail.removeprefix(_VERB).partition(", ")
    is_bulk = entry.detail.startswith(_VERB)
    is_about_jobs = entry.target.startswith(_ABOUT_JOBS) and not entry.target.startswith(_GROUPS)
    is_counted = bool(entry.job_id) or (is_about_jobs and not entry.changes)
    return AuditRow(
        entry,
        action=f"{verb} jobs" if is_bulk else _action(entry),
        page=page,
        result=result,
        jobs=entry.count if is_counted and result == "done" else None,
        target=target,
        detail=rest if is_bulk else entry.detail * (entry.detail != target) or _HINTS.get(entry.action, ""),
        changes=tuple(AuditChange(one.field, _time(one.old), _time(one.new)) for one in entry.changes),
    )


def _time(value: str | None) -> str | None:
    """A value that is a time as other pages show it; every other value as it is."""
    found = _TIME.fullmatch(value or "")
    return f"{found[1]} {found[2]} UTC" if found else value


def _action(entry: AuditEntry) -> str:
    if entry.action in _MADE_OR_CHANGED and entry.result < 400:
        made, changed = _MADE_OR_CHANGED[entry.action]
        is_change = any(one.old is not None for one in entry.changes) or not entry.changes
        return changed if is_change else made
    return summaries().get(entry.action, entry.action)


def _target(entry: AuditEntry) -> tuple[str, str]:
    """What was changed, as people call it, and the page that shows it; "" if none does."""
    if entry.action_id:
        return "what became of them", f"/dashboard/admin/operations/{path_part(entry.action_id)}"
    if entry.job_id:
        if entry.target.startswith(_SCHEDULES):
            schedule = entry.target.removeprefix(_SCHEDULES).removesuffix("/run")
            return f"a job of {schedule}", f"/dashboard/jobs/{path_part(entry.job_id)}"
        words = entry.path or " ".join(one for one in (entry.type, entry.job_id) if one)
        return words, f"/dashboard/jobs/{path_part(entry.job_id)}"
    if entry.path:
        return entry.path, f"/dashboard/files/trace{query_string(path=entry.path)}"
    first, _, rest = entry.target.strip("/").partition("/")
    name = rest.partition("/")[0] if first != "jobs" else rest.removesuffix("/retry").removesuffix("/run")
    if first == "whoami":
        return "the own session", "/dashboard/admin"
    if entry.target.startswith(_GROUPS):
        fingerprint = rest.split("/")[1]
        return entry.detail or f"group {fingerprint}", f"/dashboard/dead{query_string(fingerprint=fingerprint)}"
    if first in _PAGES and name and name not in _NOT_NAMES:
        return name, f"/dashboard/{_PAGES[first]}{path_part(name)}"
    if first in _PAGES:
        return entry.target, f"/dashboard/{_PAGES[first].partition('/')[0]}"
    if first == "keys":
        names = (one.new or one.old for one in entry.changes if one.field == "name")
        return next(names, None) or name or "keys", "/dashboard/admin"
    if first in _OVERVIEWS:
        return name if name and first == "queues" else entry.target, f"/dashboard/{_OVERVIEWS[first]}"
    return entry.target, ""


@cache
def summaries() -> dict[str, str]:
    """What each endpoint does, by its name in the audit; without what a caller of it has to know."""
    return {route.name: route.summary.partition("; ")[0] for route in ROUTES} | _WORDS
